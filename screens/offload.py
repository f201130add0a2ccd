"""Step 6: what waits in host memory."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from screens.base import FIT, StepScreen
from screens.widgets.fields import FieldForm
from screens.widgets.memory_bar import MemoryBar
from screens.widgets.steady import Steady
from wizard.memory import PredictionError, predict
from wizard.offload_text import offload_advice, offload_effects
from wizard.plan import Plan
from wizard.steps import step_of


class OffloadScreen(StepScreen):
    """Offload flags, checkpointing, and what verl makes of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f9,w", "app.fit", "Fit", id="fit-offload", tooltip=FIT)
    ]

    step_id = "offload"
    intro = (
        "What leaves the GPU, and when. Offload costs time on every step: choose it where the bar says it is needed."
    )
    findings_of = step_of("offload").findings_of
    guide = (
        "param_offload and optimizer_offload move states between phases: they make room for the rollout, not for the "
        "update. offload_policy (fsdp2) keeps them on the host all the time: it makes room for the update and is slow."
    )

    def compose_step(self) -> ComposeResult:
        yield FieldForm(step_of("offload").fields)
        yield Steady("", id="effects", markup=False)
        yield MemoryBar()

    def plan_changed(self, plan: Plan) -> None:
        self.query_one(FieldForm).show(plan)
        lines = [f"• {line}" for line in offload_effects(plan)]
        advice = offload_advice(plan, _fits_without(plan))
        self.query_one("#effects", Static).update("\n".join([*lines, *([f"! {advice}"] if advice else [])]))


def _fits_without(plan: Plan) -> bool | None:
    bare = dataclasses.replace(plan.actor, param_offload=False, optimizer_offload=False, offload_policy=False)
    try:
        return predict(dataclasses.replace(plan, actor=bare)).fits
    except PredictionError:
        return None
