"""From the last layer's output to the input of the head, the same under both strategies."""

from __future__ import annotations

from wizard.memory.ledger import Ledger
from wizard.memory.settings import Step
from wizard.memory.shapes import FP32, ModelShape


def norm_bytes(shape: ModelShape, step: Step) -> float:
    """Return what the final norm keeps for backward, its output (the head's input) among it."""
    return shape.norm_bytes * shape.hidden * step.tokens


def after_head(shape: ModelShape, step: Step, ledger: Ledger, *, train: bool) -> None:
    """Free the head's input unless the head keeps it for its own gradient."""
    if not train or not shape.trainable_ends:
        ledger.drop("activations", step.compute_bytes * shape.hidden * step.tokens)


def before_norm(shape: ModelShape, step: Step, ledger: Ledger) -> None:
    """Free, in backward, what the final norm and an offload's last group kept."""
    hidden = step.compute_bytes * shape.hidden * step.tokens
    # RMSNorm's backward in fp32: the gradient, its product with the weight, and two terms of the input's.
    ledger.touch("final norm backward", activations=4.0 * FP32 * shape.hidden * step.tokens)
    freed = norm_bytes(shape, step) - (0 if shape.trainable_ends else hidden)
    ledger.drop("activations", freed + (hidden if step.activation_offload else 0))


def reloaded_bytes(shape: ModelShape, step: Step, saved_bytes_per_token: float) -> float:
    """Return what verl's activation offload has on the GPU while a layer's backward runs: the layer's own group, the
    next one's, and the output of its re-entrant recomputation (`utils/activation_offload.py`)."""
    if not step.activation_offload:
        return 0.0
    if step.gradient_checkpointing:
        return 3.0 * step.compute_bytes * shape.hidden * step.tokens
    return saved_bytes_per_token * step.tokens


def end_of_layers(shape: ModelShape, step: Step, ledger: Ledger, *, train: bool) -> None:
    """Go from the last layer's output, which is held, to the head's input.

    In training the output goes with its last reader and the norm's tensors stay; without gradients only the norm's
    output takes its place.
    """
    hidden = step.compute_bytes * shape.hidden * step.tokens
    if not train:
        ledger.touch("final norm", activations=norm_bytes(shape, step))
        return
    ledger.hold("activations", norm_bytes(shape, step), "final norm")
    if not step.activation_offload:
        # verl's offload leaves the last group, the last layer's output, on the GPU.
        ledger.drop("activations", hidden)
