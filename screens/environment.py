"""Step 1: what the interpreter that trains has installed."""

from __future__ import annotations

import threading
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, DataTable, Input, Static

from screens.base import StepScreen
from screens.widgets.fields import FieldForm
from wizard.plan import Plan
from wizard.probe.versions import ORDER, Row, State
from wizard.steps import step_of
from wizard.text import printable
from wizard.verl.schema import SchemaError, recorded_version

COLUMNS = {"package": 12, "version": 16, "state": 5, "why": 35}
"""Column and its width: together they fit 80 columns."""
STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}
WAITING = "…"


class EnvironmentScreen(StepScreen):
    """Rows fill in as they become known; the highlighted one shows its reason and its install command in full."""

    DEFAULT_CSS = """
    EnvironmentScreen DataTable { height: auto; max-height: 15; }
    EnvironmentScreen #detail { height: auto; min-height: 3; padding: 0 1; color: $text; }
    EnvironmentScreen #follow { display: none; }
    EnvironmentScreen #follow.offered { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f5", "probe", "Check again", id="probe-again")]

    step_id = "environment"
    findings_of = step_of("environment").findings_of
    guide = (
        "Every row is asked of the interpreter that trains, in a process of its own: torch and flash-attn are imported "
        "for real. FAIL stops training or validation, WARN costs a part of them. Where verl is installed, its own "
        "wheel metadata says which versions it takes. Enter on a row, or {copy}, copies its install command. "
        "An empty interpreter is the one this program runs in; Enter in its field, or {probe-again}, asks again."
    )

    class RowRead(Message):
        """One row became known, in the probe that `probe` ends."""

        def __init__(self, row: Row, probe: threading.Event) -> None:
            super().__init__()
            self.row, self.probe = row, probe

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, Row] = {}
        self._stop = threading.Event()

    def compose_step(self) -> ComposeResult:
        yield FieldForm(step_of("environment").fields)
        yield DataTable(id="versions", cursor_type="row", zebra_stripes=False)
        yield Static("", id="detail", markup=False)
        yield Button("", id="follow", compact=True)

    def on_mount(self) -> None:
        table = self._table
        for name, width in COLUMNS.items():
            table.add_column(name, key=name, width=width)
        for name in ORDER:
            table.add_row(name, WAITING, WAITING, "", key=name)
        table.focus()
        # Not yet: another interpreter that starts now would take the processor from the first paint.
        self.call_after_refresh(self.action_probe)

    def on_unmount(self) -> None:
        self._stop.set()

    def plan_changed(self, plan: Plan) -> None:
        self.query_one(FieldForm).show(plan)
        self._offer_version()

    def action_probe(self) -> None:
        """Ask the interpreter again."""
        self._stop.set()
        self._stop = threading.Event()
        self._rows.clear()
        for name in ORDER:
            self._draw(name, "", WAITING, "")
        self._detail()
        self._probe(self.app.plan.target.python, self._stop)

    @work(thread=True, group="environment", exit_on_error=True)
    def _probe(self, python: str, stop: threading.Event) -> None:
        from wizard.probe.environment import read_rows
        from wizard.probe.gpus import read_gpus

        gpus = read_gpus(python, stop=stop)
        for row in read_rows(python, gpus, stop=stop):
            if stop.is_set():
                return
            self.post_message(self.RowRead(row, stop))

    def on_environment_screen_row_read(self, event: RowRead) -> None:
        # Rows still arrive while the application closes and the table is gone.
        if event.probe is not self._stop or not self.query("#versions"):
            return
        row = event.row
        self._rows[row.name] = row
        self._draw(row.name, row.version or "-", row.state.value.upper(), row.reason, STYLES[row.state])
        self._detail()
        self._offer_version()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_probe()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if self.query("#versions"):
            self._detail()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if self._highlighted is not None and self._highlighted.install:
            self.action_copy()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        version = self._other_version()
        if version:
            self.app.edit("target.verl_version", version)
            self._table.focus()

    @property
    def to_copy(self) -> tuple[str, str] | None:
        """The highlighted row's install command, else what it says."""
        row = self._highlighted
        if row is None:
            return None
        command = f"The command that installs {row.name}"
        return (command, row.install) if row.install else (row.name, f"{row.name} {row.version}: {row.reason}")

    @property
    def _highlighted(self) -> Row | None:
        return self._rows.get(ORDER[min(self._table.cursor_row, len(ORDER) - 1)])

    @property
    def _table(self) -> DataTable[Text | str]:
        return self.query_one("#versions", DataTable)

    def _draw(self, name: str, version: str, state: str, reason: str, style: str = "") -> None:
        cells = {"version": Text(printable(version)), "state": Text(state, style=style), "why": Text(printable(reason))}
        for column, cell in cells.items():
            if self._table.get_cell(name, column) != cell:
                self._table.update_cell(name, column, cell)

    def _detail(self) -> None:
        table = self._table
        name = ORDER[min(table.cursor_row, len(ORDER) - 1)]
        row = self._highlighted
        text = f"{name}: asking the interpreter {WAITING}" if row is None else f"{name}: {printable(row.reason)}"
        if row is not None and row.install:
            text += f"\n{printable(row.install)}"
        detail = self.query_one("#detail", Static)
        if str(detail.content) != text:
            detail.update(text)
            detail.call_after_refresh(detail.scroll_visible, animate=False)

    def _other_version(self) -> str:
        """Return the verl that is installed there, when the files are to be written for another release."""
        row = self._rows.get("verl")
        planned = self.app.plan.target.verl_version
        try:
            installed = recorded_version(row.version) if row is not None and row.version else planned
            return installed if installed != recorded_version(planned) else ""
        except SchemaError:
            return ""

    def _offer_version(self) -> None:
        button = self.query_one("#follow", Button)
        version = self._other_version()
        button.set_class(bool(version), "offered")
        button.label = Content(f"Write the files for verl {printable(version)}, which is installed there")
