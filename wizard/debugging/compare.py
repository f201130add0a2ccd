"""What a rung's run told, and whether it agrees with the rung before. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from wizard.diagnosis.evidence import Evidence
from wizard.validation.events import Event
from wizard.validation.spec import ValidationSpec
from wizard.validation.tolerance import GRADIENT_TOLERANCE, LOSS_TOLERANCE

PADDING_SHARE = 0.005
"""Of a model's parameters: what FSDP's padding to equal shards may add."""
ACTIVATION_SHARE = 0.9
"""With Ulysses, ranks keep a part of a sequence each: at most one half of what one rank keeps alone."""


@dataclass
class Observed:
    """Numbers of one run, as its ranks told them."""

    metrics: dict[str, Any] = field(default_factory=dict)
    """The latest of rank 0, by name."""
    local_parameters: dict[int, int] = field(default_factory=dict)
    """Elements that each rank holds."""
    peak_bytes: int = 0
    """Largest of any rank: allocated on a GPU, resident on a CPU."""
    seconds: float = 0.0
    """Of all steps of rank 0."""

    def feed(self, event: Event) -> None:
        """Take one event into account."""
        if event.kind == "memory":
            size = event.data.get("peak_allocated_bytes", event.data.get("resident_bytes", 0))
            self.peak_bytes = max(self.peak_bytes, int(size))
        elif event.kind == "metric" and "local_parameters" in event.data:
            self.local_parameters[event.rank] = int(event.data["local_parameters"])
        if event.rank != 0:
            return
        if event.kind == "metric":
            self.metrics.update(event.data)
        elif event.kind == "step_finished":
            self.seconds += float(event.data.get("seconds", 0.0))

    def number(self, name: str) -> float:
        """Return a metric; NaN where the run did not tell it."""
        value = self.metrics.get(name)
        return float(value) if isinstance(value, (int, float)) else math.nan


def differences(name: str, spec: ValidationSpec, now: Observed, before_name: str, before: Observed) -> list[Evidence]:
    """Return in what a run silently differs from the one before it, the most telling first; empty when they agree.

    The messages are those that `diagnosis.causes.ladder` knows. NaN, a number that was not told, agrees with all.
    """
    return [
        Evidence(f"ladder: {message}; rung {name} after {before_name}", step=name)
        for message in _messages(spec, now, before)
    ]


def _messages(spec: ValidationSpec, now: Observed, before: Observed) -> Iterator[str]:
    parameters, parameters_before = now.number("parameters"), before.number("parameters")
    held = sum(now.local_parameters.values()) * now.number("shards") / spec.world_size
    if now.metrics.get("tied_embeddings") and held > parameters * (1 + PADDING_SHARE):
        yield f"the head is untied: {held:,.0f} sharded elements of {parameters:,.0f} parameters"
    if not math.isnan(parameters_before) and parameters != parameters_before:
        yield f"the model has {parameters:,.0f} parameters instead of {parameters_before:,.0f}"
    kept, alone = now.number("saved_activation_bytes"), before.number("saved_activation_bytes")
    if spec.ulysses_size > 1 and kept > ACTIVATION_SHARE * alone:
        yield (
            f"activations are not shared: {kept:,.0f} bytes kept for the backward with ulysses_size "
            f"{spec.ulysses_size}, {alone:,.0f} without"
        )
    yield from _relative("loss", now, before, LOSS_TOLERANCE[spec.param_dtype])
    yield from _relative("gradient_norm", now, before, GRADIENT_TOLERANCE[spec.param_dtype])


def _relative(name: str, now: Observed, before: Observed, tolerance: float) -> Iterator[str]:
    value, wanted = now.number(name), before.number(name)
    difference = abs(value - wanted) / max(abs(wanted), 1e-12)
    if difference > tolerance:
        yield (
            f"{name} {value:.6g} instead of {wanted:.6g}, {difference:.2%} apart, more than the dtype explains "
            f"({tolerance:.2%})"
        )
