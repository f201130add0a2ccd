"""What all steps have in common: title line, content, findings, help line, and moving between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import DescendantFocus, Resize
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.worker import Worker, WorkerState

from screens.copying import copy_text
from screens.steps import STEPS
from screens.widgets.fields import FieldRow
from screens.widgets.findings import FindingsPanel
from screens.widgets.memory_bar import MemoryBar
from screens.widgets.steady import Steady
from wizard.findings import Finding, Fix, Severity
from wizard.plan import Plan
from wizard.text import printable
from wizard.unexpected import unexpected

if TYPE_CHECKING:
    from screens.app import WizardApp

FULL = (80, 24)
"""Columns and lines below which a screen says that it shows less than all; 60×18 is still comfortable."""
FIT = "Choose batches, rollout, attention and offload anew for the model and machine"
FAILURE_SECONDS = 60.0
"""How long an error that nobody foresaw is shown."""
WIDE_COLUMNS = 110
"""Columns from which the steps are listed at the left."""


def tell_failure(screen: Screen[None], event: Worker.StateChanged) -> None:
    """Say that something in the background ended with an error nobody foresaw; the answers and the screens stay."""
    if event.state is WorkerState.ERROR and event.worker.error is not None:
        screen.notify(unexpected(event.worker.error), severity="error", timeout=FAILURE_SECONDS, markup=False)


class StepScreen(Screen[None]):
    """A step of the wizard. Subclasses give `step_id`, `intro`, `findings_of`, `compose_step` and `plan_changed`."""

    DEFAULT_CSS = """
    StepScreen { layout: vertical; }
    StepScreen > #title { height: 1; background: $primary-background; color: $text; text-style: bold; }
    StepScreen > #columns { height: 1fr; }
    StepScreen #steps { display: none; width: 25; height: 1fr; padding: 1; background: $boost; color: $text-muted; }
    StepScreen.wide #steps { display: block; }
    StepScreen #main { width: 1fr; height: 1fr; }
    StepScreen #body { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    StepScreen #intro { color: $text-muted; height: auto; }
    StepScreen #bottom { height: auto; max-height: 50%; }
    StepScreen #cost { padding: 0 1; }
    StepScreen #hint { height: auto; max-height: 2; padding: 0 1; color: $text-muted; }
    StepScreen #small { display: none; color: $text-warning; }
    StepScreen.small #small { display: block; }
    """
    BINDING_GROUP_TITLE = "Every step"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll('up')", "Up", id="scroll-up", show=False),
        Binding("down", "scroll('down')", "Down", id="scroll-down", show=False),
        Binding("pageup", "scroll('page_up')", "Page up", id="page-up", show=False),
        Binding("pagedown", "scroll('page_down')", "Page down", id="page-down", show=False),
        Binding("home", "scroll('home')", "Top", id="scroll-home", show=False),
        Binding("end", "scroll('end')", "End", id="scroll-end", show=False),
        Binding("f12,y", "copy", "Copy", id="copy", tooltip="Copy what this step is about", show=False),
    ]

    step_id: ClassVar[str]
    intro: ClassVar[str] = ""
    """One or two sentences on what is decided here."""
    findings_of: ClassVar[Sequence[str]] = ()
    """Beginnings of the Plan paths whose findings this step shows; empty shows none, `("",)` all."""
    shows_cost: ClassVar[bool] = False
    """Whether the predicted peak stays in sight below the content."""
    guide: ClassVar[str] = ""
    """What the help key shows for this step."""

    app: WizardApp

    def compose(self) -> ComposeResult:
        yield Steady("", id="title", markup=False)
        yield Static(f"Made for {FULL[0]}×{FULL[1]}: Tab and Page Down reach the rest.", id="small", markup=False)
        with Horizontal(id="columns"):
            yield Static(self._step_list(), id="steps", markup=False)
            with Vertical(id="main"):
                with VerticalScroll(id="body", can_focus=False):
                    if self.intro:
                        yield Static(self.app.keyed(self.intro, type(self)), id="intro", markup=False)
                    yield from self.compose_step()
                with Vertical(id="bottom"):
                    if self.shows_cost:
                        yield MemoryBar(only_peak=True, id="cost")
                    if self.findings_of:
                        yield FindingsPanel([] if "" in self.findings_of else self.findings_of, id="findings")
                    yield Steady("", id="hint", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def compose_step(self) -> ComposeResult:
        """Yield the step's own widgets."""
        return iter(())

    def plan_changed(self, plan: Plan) -> None:
        """Show the Plan; called when the step appears and after every change."""

    def judged(self, findings: Sequence[Finding]) -> None:
        """Show the findings; called after every change, once the rules have looked at it."""
        for panel in self.query(FindingsPanel):
            panel.show(findings)
        for bar in self.query(MemoryBar):
            bar.show(self.app.plan)
        self._draw_title(findings)

    @property
    def step_index(self) -> int:
        """Position of this step, from 0."""
        return next(index for index, step in enumerate(STEPS) if step.id == self.step_id)

    @property
    def running(self) -> bool:
        """Whether this step has something going on that leaving would end."""
        return False

    @property
    def pending(self) -> str:
        """What was typed here and would be left behind, in words; empty for nothing."""
        return ""

    @property
    def first_fix(self) -> Fix | None:
        """What the fix key applies."""
        panel = next(iter(self.query(FindingsPanel)), None)
        return panel.first_fix if panel else None

    def on_mount(self) -> None:
        self._set_size(self.app.size)
        self.plan_changed(self.app.plan)

    def on_screen_resume(self) -> None:
        self.plan_changed(self.app.plan)
        self.judged(self.app.findings)

    def on_resize(self, event: Resize) -> None:
        self._set_size(event.size)

    def _set_size(self, size: Size) -> None:
        self.set_class(size.width < FULL[0] or size.height < FULL[1], "small")
        self.set_class(size.width >= WIDE_COLUMNS, "wide")
        self._draw_title(self.app.findings)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        row = next((node for node in event.widget.ancestors_with_self if isinstance(node, FieldRow)), None)
        self.query_one("#hint", Static).update(f"{row.path}: {row.spec.help}" if row else "")

    def focus_field(self, path: str) -> None:
        """Put the focus on a field."""
        row = next((row for row in self.query(FieldRow) if row.path == path), None)
        if row is not None and not row.display:
            self.notify(f"verl does not read {path} under these answers.", markup=False)
        elif row is not None:
            row.focus_editor()

    @property
    def to_copy(self) -> tuple[str, str] | None:
        """What the copy key takes, as its name and text; None for nothing."""
        panel = next(iter(self.query(FindingsPanel)), None)
        return panel.to_copy if panel else None

    def action_copy(self) -> None:
        """Copy what this step has to copy."""
        found = self.to_copy
        if found is None:
            self.notify("Nothing to copy here.")
        else:
            copy_text(self.app, *found)

    def action_scroll(self, where: str) -> None:
        """Scroll the content: the keys work whatever has the focus."""
        body = self.query_one("#body", VerticalScroll)
        getattr(body, f"scroll_{where}")(animate=False)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        tell_failure(self, event)

    def on_field_row_edited(self, event: FieldRow.Edited) -> None:
        self.app.edit(event.path, event.value)

    def on_findings_panel_fix_chosen(self, event: FindingsPanel.FixChosen) -> None:
        self.app.apply(event.fix)

    def _draw_title(self, findings: Sequence[Finding]) -> None:
        step = STEPS[self.step_index]
        counts = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
        errors, warnings = counts[Severity.ERROR], counts[Severity.WARNING]
        state = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
        left = f" {self.step_index + 1}/{len(STEPS)} {step.title}"
        dots = "".join("#" if index == self.step_index else "·" for index in range(len(STEPS)))
        width = self.app.size.width
        text = f"{left}  [{dots}]  {printable(self.app.plan.model.id)}"[: max(20, width - len(state) - 2)]
        self.query_one("#title", Static).update(f"{text:<{max(0, width - len(state) - 1)}}{state}")

    def _step_list(self) -> str:
        return "\n".join(
            f"{'>' if step.id == self.step_id else ' '}{index:3} {step.title}" for index, step in enumerate(STEPS, 1)
        )
