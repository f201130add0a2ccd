"""Step 9: everything at a glance, and writing the files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.syntax import Syntax
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Button, Input, Label, Static

from generators import render, write
from screens.base import StepScreen
from screens.widgets.dialogs import Confirm
from screens.widgets.findings import FindingsPanel
from screens.widgets.memory_bar import LEGEND, MemoryBar
from wizard.files import FileExists
from wizard.findings import Finding, Severity
from wizard.memory import PredictionError
from wizard.memory.roofline import step_time
from wizard.model.errors import ModelError
from wizard.model.tiny import TINY_ID, ensure_tiny
from wizard.model.units import NoUnits
from wizard.plan import Plan
from wizard.steps import step_of
from wizard.text import printable

CONFIG = "run.yaml"
SHOWN_SHARE = 0.01
BLOCKED = "Files can be written once no error is left."


def time_text(plan: Plan) -> str:
    """Return how long an update takes by roofline, and what it assumes; empty where nothing is known."""
    if not plan.machine.gpus_per_node:
        return ""
    try:
        time = step_time(plan)
    except (PredictionError, NoUnits):
        return ""
    parts = ", ".join(
        f"{name} {seconds:.2g} s" for name, seconds in time.parts.items() if seconds > SHOWN_SHARE * time.seconds
    )
    return f"An update takes about {time.seconds:.2g} s by roofline ({parts}). {'; '.join(time.assumptions[:2])}."


class ReviewScreen(StepScreen):
    """Findings, memory by phase, the YAML, and where to write it."""

    step_id = "review"
    intro = "Enter in the folder field writes the files. Page Down shows the YAML, each line with its reason."
    findings_of = step_of("review").findings_of
    guide = (
        "run.yaml is the smallest difference from verl's defaults, run.sh starts it from any folder, and "
        "verl-wizard.yaml is this Plan. Files that are there already are replaced only after you agree."
    )

    def __init__(self) -> None:
        super().__init__()
        self._result = ""
        self._blocked = False

    def compose_step(self) -> ComposeResult:
        with Horizontal(id="target"):
            yield Label("folder ", markup=False)
            yield Input("verl-run", id="folder", compact=True)
            yield Button("Write", id="write", compact=True)
            yield Button("Copy YAML", id="copy", compact=True)
        yield Static("", id="written", classes="empty", markup=False)
        yield MemoryBar(id="phases")
        yield Static("", id="time", markup=False)
        yield Static(LEGEND, id="legend", markup=False)
        yield Static("", id="yaml", markup=False)

    DEFAULT_CSS = """
    ReviewScreen #target { height: 1; }
    ReviewScreen #target Input { width: 1fr; max-width: 40; }
    ReviewScreen #written { height: auto; }
    ReviewScreen #written.empty { display: none; }
    ReviewScreen #written { color: $text-success; }
    ReviewScreen #legend { color: $text-muted; }
    ReviewScreen #time { height: auto; }
    """

    def plan_changed(self, plan: Plan) -> None:
        self.query_one("#time", Static).update(time_text(plan))
        text = render(plan)[CONFIG]
        self.query_one("#yaml", Static).update(
            Syntax(text, "yaml", theme="ansi_dark", word_wrap=True, background_color="default")
        )

    def judged(self, findings: Sequence[Finding]) -> None:
        super().judged(findings)
        errors = sum(finding.severity is Severity.ERROR for finding in findings)
        self.query_one("#write", Button).disabled = errors > 0
        self._blocked = errors > 0
        self._say(BLOCKED if errors else self._result)

    @property
    def to_copy(self) -> tuple[str, str]:
        """The YAML, or the finding that has the focus."""
        chosen = super().to_copy if self.query_one(FindingsPanel).has_focus else None
        return chosen or (CONFIG, render(self.app.plan)[CONFIG])

    @on(Button.Pressed, "#copy")
    def _copy(self) -> None:
        self.action_copy()

    @on(Input.Submitted, "#folder")
    @on(Button.Pressed, "#write")
    def _write(self) -> None:
        if not self._blocked:
            self._write_files(overwrite=False)

    @work(exclusive=True, group="write")
    async def _write_files(self, *, overwrite: bool) -> None:
        folder = Path(self.query_one("#folder", Input).value or ".").expanduser()
        plan = self.app.plan
        try:
            written = write(render(plan), folder, overwrite=overwrite)
            if plan.model.id == TINY_ID:
                self._conclude("Building the tiny model that run.yaml names …")
                await asyncio.to_thread(ensure_tiny, plan.target.python)
        except FileExists as error:
            question = f"{error.path} exists and differs. Replace it? The old version stays as {error.path.name}.bak."
            self.app.push_screen(Confirm(printable(question), "Replace"), self._write_over)
        except (OSError, ModelError) as error:
            self._conclude(f"{folder} could not be written: {error}")
        else:
            names = ", ".join(path.name for path in written)
            goes_on = self.app.keyed("{next} goes on to prove it")
            self._conclude(f"Written to {folder.resolve()}: {names}. {goes_on}; run.sh starts training.")

    def _write_over(self, agreed: bool | None) -> None:
        if agreed:
            self._write_files(overwrite=True)

    def _conclude(self, text: str) -> None:
        self._result = text
        self._say(text)

    def _say(self, text: str) -> None:
        written = self.query_one("#written", Static)
        written.update(printable(text))
        written.set_class(not text, "empty")
