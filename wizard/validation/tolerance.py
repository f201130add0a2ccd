"""How far two runs of the same model may be apart before the dtype no longer explains it. Standard library only."""

from __future__ import annotations

LOSS_TOLERANCE = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 2e-2}
"""Largest relative difference of two losses, by compute dtype: about two units in the last place of the dtype
(2⁻²⁴, 2⁻¹¹, 2⁻⁸), grown over the layers' sums."""
GRADIENT_TOLERANCE = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 1e-1}
"""Of two gradient norms: a gradient passes twice as many roundings as a loss, and its square is taken. Ranks that keep
their own gradients differ by more: by 36 % on the built-in model."""
