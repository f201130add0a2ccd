"""The debugging ladder: short runs that add one thing at a time, the diagnosis, a fix by one key, and again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static
from textual.worker import Worker

from screens.base import tell_failure
from screens.widgets.dialogs import Confirm, Help
from wizard.debugging.ladder import ABOUT
from wizard.debugging.report import FILE_NAME, report_text
from wizard.debugging.session import AGAIN, DebugSession, MakeSpec, RungResult, RungStarted
from wizard.debugging.text import HEAD, cells, diagnosis_text, history
from wizard.files import unused, write_atomic
from wizard.findings import Fix
from wizard.model.errors import ModelError
from wizard.plan import Plan
from wizard.text import printable
from wizard.validation.launcher import Run

if TYPE_CHECKING:
    from screens.app import WizardApp

WIDTHS = (11, 13, 9, 9, 8, 10)
"""Columns of the rung table; what a rung adds is said below it."""
GUIDE = (
    "Each rung is a short run of its own: one device, then DDP, FSDP, the Plan's dtypes, offload, Ulysses, and at last "
    "the Plan as it is. The first rung that fails shows what is at fault. Rungs that pass are compared with the one "
    "before: a loss or gradient norm that differs by more than the dtype explains fails too, since a training with it "
    "would run and be wrong.\n\n"
    "{debug-fix} applies the first fix and climbs again; what passed and is not touched by the fix is kept. "
    "{debug-again} runs again after something outside the Plan was mended. {debug-cancel} cancels, {debug-report} "
    "writes a report to attach to a bug report, up and down show what a rung adds. {debug-leave} goes back; fixes stay "
    "in the Plan (undo: {undo} there)."
)


class DebugScreen(Screen[None]):
    """Climbs with the application's Plan as soon as it is shown."""

    app: WizardApp

    BINDING_GROUP_TITLE = "Debug"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,question_mark", "guide", "Help", id="debug-help"),
        Binding("f4,x", "fix", "Fix, run again", id="debug-fix"),
        Binding("s,f5", "again", "Run again", id="debug-again"),
        Binding("c", "cancel", "Cancel", id="debug-cancel"),
        Binding("w", "report", "Report", id="debug-report"),
        Binding("escape,b,f2", "leave", "Back", id="debug-leave"),
    ]
    DEFAULT_CSS = """
    DebugScreen > #debug-title { height: 1; background: $primary-background; color: $text; text-style: bold; }
    DebugScreen DataTable { height: auto; max-height: 10; }
    DebugScreen #detail { height: auto; max-height: 2; padding: 0 1; color: $text-muted; }
    DebugScreen #state { height: auto; max-height: 3; padding: 0 1; text-style: bold; }
    DebugScreen #found { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    """

    def __init__(self, plan: Plan, make_spec: MakeSpec) -> None:
        super().__init__()
        self._session = DebugSession(plan, make_spec, lambda spec, _: Run.start(spec, self.app.python))
        self._details: dict[str, str] = {}
        self._busy = False

    def compose(self) -> ComposeResult:
        yield Static(" Debug: from one device to the Plan", id="debug-title", markup=False)
        table: DataTable[str] = DataTable(cursor_type="row", zebra_stripes=False)
        yield table
        yield Static("", id="detail", markup=False)
        yield Static("", id="state", markup=False)
        with VerticalScroll(id="found"):
            yield Static("", id="why", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    @property
    def running(self) -> bool:
        """Whether a rung is running, or about to."""
        return self._busy

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what can be done now."""
        if action == "fix":
            return not self._busy and bool(self._session.fixes)
        if action in ("again", "report"):
            return not self._busy
        return self._busy if action == "cancel" else True

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for name, width in zip(HEAD, WIDTHS, strict=False):
            table.add_column(name, key=name, width=width)
        table.focus()
        self._climb()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        self.query_one("#detail", Static).update(self._details.get(str(event.row_key.value), ""))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        tell_failure(self, event)

    def action_guide(self) -> None:
        """Explain the ladder."""
        self.app.push_screen(Help(self._keyed(GUIDE)))

    def action_fix(self) -> None:
        """Apply the first fix that was not tried yet, and climb again."""
        fix = self._session.fixes[0]
        self.app.apply(fix)
        self._begin(fix)

    def action_again(self) -> None:
        """Climb again with the same Plan."""
        self._begin(AGAIN)

    def _begin(self, fix: Fix) -> None:
        self._session.go_on(self.app.plan, fix)
        self._climb()

    async def action_cancel(self) -> None:
        """End the rung that runs, and the climb."""
        self._say("Cancelling …")
        await self._session.cancel()

    def action_leave(self) -> None:
        """Go back to the validation; asks while a rung runs."""
        if not self._busy:
            self.dismiss()
        else:
            self.app.push_screen(Confirm("A rung is running. End it and go back?", "Go back"), self._left)

    def _left(self, agreed: bool | None) -> None:
        # The worker goes with the screen, and the run with the worker.
        if agreed and self.is_attached:
            self.dismiss()

    @work(exclusive=True, group="report", exit_on_error=False)
    async def action_report(self) -> None:
        """Write the report beside the Plan."""
        self._say("Asking the interpreter for its versions …")
        from wizard.probe.doctor_text import ask_doctor

        environment = await asyncio.to_thread(ask_doctor, self.app.python)
        path = unused(self.app.session.path.with_name(FILE_NAME))
        try:
            write_atomic(path, report_text(self._session.attempts, environment))
        except OSError as error:
            self._say(f"{path} could not be written: {error.strerror}")
        else:
            self._say(f"The report is in {path}; keys and home paths are taken out.")

    @work(exclusive=True, group="climb", exit_on_error=False)
    async def _climb(self) -> None:
        self._set_busy(True)
        self.query_one(DataTable).clear()
        self._details.clear()
        self._explain()
        self._say("Starting …")
        try:
            async for step in self._session.climb():
                if isinstance(step, RungStarted):
                    self._say(f"{step.rung.name}: {ABOUT[step.rung.name]} …")
                elif isinstance(step, RungResult):
                    self._show(step)
            self._conclude()
        except (ModelError, OSError, ValueError) as error:
            self._say(f"Could not start: {printable(str(error))}")
        finally:
            self._set_busy(False)

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        # The screen may be gone when the application ends a run.
        if self.is_attached:
            self.refresh_bindings()

    def _show(self, result: RungResult) -> None:
        name = result.rung.name
        *narrow, about = cells(result)
        folder = f"  run folder {result.folder}" if result.folder else ""
        self._details[name] = printable(f"{name}: {result.why or about}{folder}")
        table = self.query_one(DataTable)
        table.add_row(*narrow, key=name)
        table.move_cursor(row=table.row_count - 1)

    def _conclude(self) -> None:
        attempt = self._session.attempt
        last = attempt.results[-1] if attempt.results else None
        fixes = self._session.fixes
        if attempt.passed:
            self._say(self._keyed("The Plan passed every rung. {debug-leave} goes back; Review writes the files."))
        elif last is not None and last.outcome == "cancelled":
            self._say(self._keyed("Cancelled. {debug-again} climbs again."))
        elif fixes:
            key, report = self._keyed("{debug-fix}"), self._keyed("{debug-report}")
            self._say(f"{key}: {printable(fixes[0].label)}, and climbs again. {report} writes a report.")
        else:
            self._say(
                self._keyed(
                    "No fix of the Plan is left to try: see below what helps, then {debug-again} climbs again. "
                    "{debug-report} writes a report."
                )
            )
        self._explain()

    def _explain(self) -> None:
        """Show the diagnosis, and what each attempt has changed."""
        attempts = self._session.attempts
        found = attempts[-1].diagnosis
        lines = [diagnosis_text(found), ""] if found else []
        if len(attempts) > 1:
            for title, changes in history(attempts):
                lines += [title, *(f"  {change}" for change in changes)]
        self.query_one("#why", Static).update("\n".join(lines))

    def _keyed(self, text: str) -> str:
        return self.app.keyed(text, DebugScreen)

    def _say(self, text: str) -> None:
        self.query_one("#state", Static).update(text)
