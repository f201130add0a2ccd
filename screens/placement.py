"""Step 8: algorithm, and which roles run on which GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from screens.base import StepScreen
from screens.widgets.fields import FieldForm
from wizard.findings import Finding
from wizard.memory import group_peaks
from wizard.placing import (
    FORM,
    LAYOUTS,
    PlacementError,
    groups_text,
    laid_out,
    layout_refusals,
    parse_groups,
    placement_lines,
)
from wizard.plan import GpuGroup, Plan
from wizard.steps import step_of
from wizard.text import printable


class PlacementScreen(StepScreen):
    """Roles the algorithm needs, and their GPU groups."""

    DEFAULT_CSS = """
    PlacementScreen #layouts, PlacementScreen #roles, PlacementScreen #groups-problem { height: auto; }
    PlacementScreen #layouts { border: none; padding: 0; }
    PlacementScreen #own { height: 1; }
    PlacementScreen #own Label { width: 34; }
    PlacementScreen #own Input { width: 1fr; }
    PlacementScreen #groups-problem { color: $text-error; }
    PlacementScreen #roles { margin: 0 0 1 0; }
    """

    step_id = "placement"
    intro = "The algorithm decides which roles exist; all of them share all GPUs unless you give some their own."
    findings_of = step_of("placement").findings_of
    guide = (
        "Colocated roles take turns on the same GPUs. A separate rollout generates while the trainer updates "
        "(verl's separate_async trainer). A critic or reference on GPUs of its own needs a launcher module, which is "
        f"generated. Groups are typed as {FORM}; below them stands what one GPU of each needs."
    )

    def __init__(self) -> None:
        super().__init__()
        self._refusals: dict[str, str] | None = None

    def compose_step(self) -> ComposeResult:
        yield FieldForm(step_of("placement").forms[0])
        yield OptionList(id="layouts", compact=True)
        with Horizontal(id="own"):
            yield Label("groups", markup=False)
            yield Input(placeholder=f"your own: {FORM}", id="groups", compact=True)
        yield Static("", id="groups-problem", markup=False)
        yield Static("", id="roles", markup=False)
        yield FieldForm(step_of("placement").forms[1])

    def plan_changed(self, plan: Plan) -> None:
        for form in self.query(FieldForm):
            form.show(plan)
        self._offer(layout_refusals(plan))
        field = self.query_one("#groups", Input)
        if not field.has_focus:
            with self.prevent(Input.Changed):
                field.value = groups_text(plan.placement.groups)

    def judged(self, findings: Sequence[Finding]) -> None:
        super().judged(findings)
        plan = self.app.plan
        self.query_one("#roles", Static).update("\n".join(placement_lines(plan, group_peaks(plan))))

    def _offer(self, refusals: dict[str, str]) -> None:
        if refusals == self._refusals:
            return
        self._refusals = refusals
        layouts = self.query_one("#layouts", OptionList)
        before = layouts.highlighted
        layouts.clear_options()
        for name, refusal in refusals.items():
            text = LAYOUTS[name].label + (f" ({refusal})" if refusal else "")
            layouts.add_option(Option(Content(text), id=name, disabled=bool(refusal)))
        layouts.highlighted = before or 0

    @on(OptionList.OptionSelected, "#layouts")
    def _layout(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._place(laid_out(self.app.plan, event.option.id or "colocated"))

    @on(Input.Changed, "#groups")
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        problem = self.query_one("#groups-problem", Static)
        try:
            groups = parse_groups(event.value)
        except PlacementError as error:
            problem.update(printable(str(error)))
            return
        problem.update("")
        self._place(groups)

    def _place(self, groups: tuple[GpuGroup, ...]) -> None:
        self.app.edit("placement.groups", groups)
