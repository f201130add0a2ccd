"""Numbers that overflow in the dtype chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import Bench, plan_of
from tests.faults.models import change_tensors

pytest.importorskip("torch")
pytestmark = pytest.mark.fault


def test_activations_overflow_in_fp16(bench: Bench, model: Path):
    """Weights as bf16 training leaves them: 3e38 is reached by none, 65504 by many."""

    def grow(tensors):
        tensors["model.layers.2.mlp.down_proj.weight"] *= 3e7

    change_tensors(model, grow)
    found, fixed = bench.is_cured_by_its_first_fix("non-finite-activation", plan_of(model, param_dtype="fp16"))
    assert fixed.actor.param_dtype == "bf16"
    assert found.diagnosis is not None
    assert "model.layers.2.mlp" in found.diagnosis.what


def test_gradients_overflow_in_fp16(bench: Bench, model: Path):
    """A huge projection after tiny ones: activations stay small, their gradients do not."""

    def skew(tensors):
        tensors["lm_head.weight"] *= 1e4
        tensors["model.layers.3.mlp.down_proj.weight"] *= 2e5
        tensors["model.layers.3.mlp.gate_proj.weight"] *= 1e-4
        tensors["model.layers.3.mlp.up_proj.weight"] *= 1e-4

    change_tensors(model, skew)
    found, fixed = bench.is_cured_by_its_first_fix("non-finite-backward", plan_of(model, param_dtype="fp16"))
    assert fixed.actor.param_dtype == "bf16"
    assert found.diagnosis is not None
    assert "model.layers.3.mlp" in found.diagnosis.what
