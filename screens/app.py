"""The wizard's application: the Plan, the steps, and what holds on every screen."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.timer import Timer

from screens.base import StepScreen
from screens.steps import STEPS
from screens.widgets.dialogs import Confirm, Help
from screens.widgets.fields import FieldRow
from wizard.findings import Finding, Fix
from wizard.fixing import apply_fix
from wizard.model.process import InspectorProcess
from wizard.plan import Plan, PlanError
from wizard.plan_file import FILE_NAME, load_plan
from wizard.rules import check_plan
from wizard.session import Session

JUDGE_SECONDS = 0.08
"""Pause in typing after which rules and predictor look at the Plan."""
CANCELLED = 130


class WizardApp(App[int]):
    """Ten steps over one Plan. Every change goes through `edit`, `apply` or `set_plan`."""

    TITLE = "verl-wizard"
    ENABLE_COMMAND_PALETTE = True
    ANIMATION_LEVEL = "none"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,question_mark", "help", "Help", id="help", key_display="F1"),
        Binding("f2,b", "previous_step", "Back", id="back", key_display="F2"),
        Binding("f3,n", "next_step", "Next", id="next", key_display="F3"),
        Binding("f4,x", "fix", "Fix", id="fix", key_display="F4"),
        Binding("f6,g", "steps", "Steps", id="steps", key_display="F6"),
        Binding("f7,u", "undo", "Undo", id="undo", key_display="F7"),
        Binding("f8,r", "redo", "Redo", id="redo", key_display="F8", show=False),
        Binding("escape", "leave_field", "Leave field", id="leave-field", show=False),
        Binding("ctrl+q,q", "quit", "Quit", id="quit", key_display="^q"),
        Binding("ctrl+c", "interrupt", "Quit", id="interrupt", show=False, priority=True),
    ]

    def __init__(self, plan: Plan, path: Path, python: str = "", *, ascii_only: bool = False) -> None:
        super().__init__()
        self.ascii_only = ascii_only
        self.session = Session(plan, path)
        self.python = python or plan.target.python
        self.findings: tuple[Finding, ...] = ()
        self.inspector = InspectorProcess(self.python)
        self._steps: dict[str, StepScreen] = {}
        self._judging: Timer | None = None
        self._interrupts = 0

    @property
    def plan(self) -> Plan:
        """The answers so far."""
        return self.session.plan

    def edit(self, path: str, value: object) -> None:
        """Change one field; a value it cannot have is said and changes nothing."""
        try:
            self.set_plan(self.plan.replace(path, value))
        except PlanError as error:
            self.notify(str(error), severity="error", markup=False)

    def apply(self, fix: Fix) -> None:
        """Apply a fix of a finding or diagnosis."""
        try:
            self.set_plan(apply_fix(self.plan, fix))
        except PlanError as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self.notify(f"{fix.label} (undo: F7)", markup=False)

    def set_plan(self, plan: Plan) -> None:
        """Take a whole Plan."""
        if self.session.change(plan):
            self._changed()

    def _changed(self) -> None:
        screen = self.screen
        if isinstance(screen, StepScreen):
            screen.plan_changed(self.plan)
        if self._judging is not None:
            self._judging.stop()
        self._judging = self.set_timer(JUDGE_SECONDS, self._judge)

    def _judge(self) -> None:
        self.findings = check_plan(self.plan)
        # The timer may ring while the application closes.
        screen = self.screen_stack[-1] if self.screen_stack else None
        if isinstance(screen, StepScreen):
            screen.judged(self.findings)

    def on_mount(self) -> None:
        self._judge()
        self.go(STEPS[0].id)
        self.warm_inspector()
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            import asyncio

            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._terminated, number)

    @work(exclusive=True, group="inspector")
    async def warm_inspector(self) -> None:
        """Import torch and transformers in the background, before the model step asks."""
        await self.inspector.warm()

    def go(self, step_id: str) -> None:
        """Show a step; answers are saved on the way."""
        self.save()
        if step_id not in self._steps:
            step = next(step for step in STEPS if step.id == step_id)
            self._steps[step_id] = step.make()
        screen = self._steps[step_id]
        if self.screen is not screen:
            if isinstance(self.screen, StepScreen):
                self.switch_screen(screen)
            else:
                self.push_screen(screen)

    def save(self) -> None:
        """Write the answers; when that fails they stay in memory and it is said."""
        try:
            self.session.save()
        except OSError as error:
            self.notify(f"{self.session.path} could not be saved: {error.strerror}", severity="error", markup=False)

    def _move(self, steps: int) -> None:
        if isinstance(self.screen, StepScreen):
            index = self.screen.step_index + steps
            if 0 <= index < len(STEPS):
                self.go(STEPS[index].id)

    def action_next_step(self) -> None:
        """Go to the next step."""
        self._move(1)

    def action_previous_step(self) -> None:
        """Go to the step before."""
        self._move(-1)

    def action_fix(self) -> None:
        """Apply the first fix of this step's findings."""
        if isinstance(self.screen, StepScreen):
            fix = self.screen.first_fix
            if fix is None:
                self.notify("Nothing to fix here.")
            else:
                self.apply(fix)

    def action_undo(self) -> None:
        """Take the last change back."""
        if self.session.undo():
            self._changed()
        else:
            self.notify("Nothing to undo.")

    def action_redo(self) -> None:
        """Make the change again that was taken back."""
        if self.session.redo():
            self._changed()
        else:
            self.notify("Nothing to redo.")

    def action_leave_field(self) -> None:
        """Take the focus off a field, so that letters are commands again."""
        self.screen.set_focus(None)

    def action_steps(self) -> None:
        """Choose a step by name in the command palette."""
        self.search_commands(
            [(f"{i + 1}. {step.title}", lambda step_id=step.id: self.go(step_id)) for i, step in enumerate(STEPS)]
        )

    def action_help(self) -> None:
        """Explain this step and the focused field."""
        screen = self.screen
        if not isinstance(screen, StepScreen):
            return
        parts = [screen.guide or screen.intro]
        row = next((node for node in self._focused_path() if isinstance(node, FieldRow)), None)
        if row is not None:
            from wizard.field_help import field_help

            parts.insert(0, field_help(row.path, self.plan))
        parts.append(
            "Keys: F2/b back, F3/n next, F4/x apply the first fix, F6/g steps, F7/u undo, F8/r redo, Tab and arrows "
            "move, Enter chooses, Escape leaves a field (letters are commands then), ctrl+p all commands, ctrl+q quit. "
            "Answers are saved after every step."
        )
        self.push_screen(Help("\n\n".join(part for part in parts if part)))

    def _focused_path(self) -> list[Any]:
        return list(self.focused.ancestors_with_self) if self.focused is not None else []

    def get_system_commands(self, screen: Screen[Any]) -> Any:
        yield from super().get_system_commands(screen)
        for index, step in enumerate(STEPS):
            yield SystemCommand(
                f"{index + 1}. {step.title}", "Go to this step", lambda step_id=step.id: self.go(step_id)
            )
        yield SystemCommand("Undo", "Take the last change back", self.action_undo)
        yield SystemCommand("Redo", "Make it again", self.action_redo)

    async def action_quit(self) -> None:
        """Save and leave; asks only when something still runs or could not be saved."""
        self.save()
        if self.session.unsaved:
            question = f"{self.session.path} could not be saved. Leave and lose the answers?"
            self.push_screen(Confirm(question, "Leave"), lambda leave: self.exit(0) if leave else None)
        else:
            self.exit(0)

    def action_interrupt(self) -> None:
        """ctrl+c: the first time it saves and says how to leave, the second time it leaves."""
        self._interrupts += 1
        self.save()
        if self._interrupts > 1:
            self.exit(CANCELLED)
        else:
            self.notify("Answers are saved. ctrl+c again leaves.")

    def _terminated(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self.session.save()
        self.exit(128 + number)

    async def on_unmount(self) -> None:
        await self.inspector.close()


def run_app(file: Path | None, *, resume: bool, python: str, ascii_only: bool, mouse: bool) -> int:
    """Open the wizard; returns the exit code."""
    try:
        plan, path = _start(file, resume)
    except (PlanError, OSError) as error:
        print(f"verl-wizard: {error}", file=sys.stderr)
        return 2
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        print(
            "verl-wizard: this is no terminal. Scripts use `verl-wizard generate --model … --gpus … --out DIR` "
            "(see --help).",
            file=sys.stderr,
        )
        return 2
    code = WizardApp(plan, path, python, ascii_only=ascii_only).run(mouse=mouse)
    print(f"verl-wizard: answers are in {path}", file=sys.stderr)
    return 0 if code is None else code


def _start(file: Path | None, resume: bool) -> tuple[Plan, Path]:
    """Return the Plan to begin with and the file it is saved to.

    Raises:
        PlanError: the file is neither a Plan nor a verl configuration.
        OSError: it cannot be read.
    """
    own = Path(FILE_NAME)
    if file is None:
        return (load_plan(own) if own.exists() else Plan()), own
    if file.is_dir():
        return load_plan(file / FILE_NAME), file / FILE_NAME
    from wizard.verl.importer import plan_from_file

    return plan_from_file(file)
