"""Step 7: sequence parallelism, batches, rollout."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from screens.base import FIT, StepScreen
from screens.widgets.fields import FieldForm
from screens.widgets.steady import Steady
from wizard.derived import derive, derived_text, ulysses_text
from wizard.plan import Plan
from wizard.steps import step_of


class BatchesScreen(StepScreen):
    """Lengths, batch sizes, Ulysses, rollout engine; derived numbers beside them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f9,w", "app.fit", "Fit", id="fit-batches", tooltip=FIT)
    ]

    step_id = "batches"
    intro = "Train and mini-batches count prompts. {fit-batches} chooses all of these anew for the model and machine."
    findings_of = step_of("batches").findings_of
    shows_cost = True
    guide = (
        "A step: train batch × n responses. It is cut into mini-batches (one optimizer update each), these over the "
        "data-parallel ranks, and there into micro-batches, one forward-backward pass each: a number of samples, or "
        "with dynamic batch size as many samples as a token budget holds."
    )

    def compose_step(self) -> ComposeResult:
        yield Steady("", id="derived", markup=False)
        yield FieldForm(step_of("batches").forms[0])
        yield Steady("", id="ulysses", markup=False)
        yield FieldForm(step_of("batches").forms[1])

    def plan_changed(self, plan: Plan) -> None:
        for form in self.query(FieldForm):
            form.show(plan)
        self.query_one("#derived", Static).update(derived_text(derive(plan)))
        self.query_one("#ulysses", Static).update(ulysses_text(plan))
