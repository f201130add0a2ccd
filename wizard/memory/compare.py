"""Measured against predicted peaks: where they differ, and by which cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wizard.memory.prediction import PhasePeak, Prediction

TOLERANCE = 0.10
"""Differences up to a tenth are not explained."""

LESS = {
    "parameters": "parameters on the GPU are fewer than planned: offloaded, of a narrower dtype, or over more ranks",
    "optimizer": "optimizer state is not on the GPU yet (before the first step), offloaded, or of a narrower dtype",
    "gradients": "fewer gradients are held: frozen parameters, or a single micro-batch",
    "unsharded": "units are gathered smaller than planned: more of the model is wrapped",
    "activations": "micro-batches hold fewer tokens than the budget, or layers keep less than planned",
    "logits": "logits are smaller than planned: fewer tokens, or fused kernels",
    "workspace": "cuBLAS workspaces are smaller on this GPU",
}
MORE = {
    "parameters": "another copy of the parameters is on the GPU: offload is off, or the world is smaller than planned",
    "optimizer": "optimizer state that should be elsewhere is on the GPU, or the world is smaller than planned",
    "gradients": "unsharded gradients are kept: no_sync accumulates on every rank",
    "unsharded": "a larger unit is gathered than planned: layers are not wrapped and fall into the root",
    "activations": "layers keep more than planned: checkpointing is off, an attention mask, or longer micro-batches",
    "logits": "logits-sized tensors are kept: entropy or cross entropy without fused kernels, or longer micro-batches",
    "workspace": "libraries hold workspaces on this GPU",
}


@dataclass(frozen=True)
class Comparison:
    """One phase: what was predicted, what was measured, and why they differ."""

    phase: str
    predicted_bytes: int
    measured_bytes: int
    cause: str = ""
    """The cause by the breakdown's name; empty within the tolerance."""
    explanation: str = ""

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.predicted_bytes / self.measured_bytes - 1 if self.measured_bytes else 0.0


def compare(prediction: Prediction, measured_bytes_by_phase: Mapping[str, int]) -> tuple[Comparison, ...]:
    """Put measured peaks beside predicted ones, in the prediction's order; phases known to only one side are left out.

    A difference over `TOLERANCE` is put down to the one cause of the breakdown whose size it is nearest to: what is
    missing when less was measured, what would have to be there twice when more was.
    """
    return tuple(
        _compare(phase, measured_bytes_by_phase[phase.name])
        for phase in prediction.phases
        if measured_bytes_by_phase.get(phase.name)
    )


def _compare(phase: PhasePeak, measured_bytes: int) -> Comparison:
    difference = measured_bytes - phase.peak_allocated_bytes
    if abs(difference) <= TOLERANCE * measured_bytes or not phase.breakdown:
        return Comparison(phase.name, phase.peak_allocated_bytes, measured_bytes)
    explanations = MORE if difference > 0 else LESS
    known = {cause: size for cause, size in phase.breakdown.items() if cause in explanations}
    cause = min(known, key=lambda name: abs(known[name] - abs(difference)))
    return Comparison(phase.name, phase.peak_allocated_bytes, measured_bytes, cause, explanations[cause])
