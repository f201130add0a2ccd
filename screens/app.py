"""The wizard's application: the Plan, the steps, and what holds on every screen."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from textual import work
from textual.app import App
from textual.binding import Binding
from textual.events import DescendantFocus
from textual.filter import LineFilter, NoColor
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input, OptionList
from textual.worker import WorkerFailed

from screens.app_bindings import APP_BINDINGS, STEP_ACTIONS
from screens.base import StepScreen
from screens.keymap import DEFAULT_KEYS, UserKeys, keyed, shown_key
from screens.line_filters import AsciiFilter, JoinFilter, PrintableFilter
from screens.steps import STEPS, make_screen
from screens.widgets.dialogs import Ask, Confirm, Help
from screens.widgets.fields import FieldRow
from wizard.files import FileExists
from wizard.findings import Finding, Fix
from wizard.fixing import apply_fix
from wizard.model.process import InspectorProcess
from wizard.opening import GoingOn, Resume
from wizard.plan import Plan, PlanError
from wizard.plan_file import FILE_NAME
from wizard.session import Session

JUDGE_SECONDS = 0.08
"""Pause in typing after which rules and predictor look at the Plan."""
PROBLEM_SECONDS = 20.0
"""How long it is shown that an entry of the file of keys was left out."""
INTERRUPT_SECONDS = 5.0
"""Within so long a second ctrl+c leaves."""
CANCELLED = 130


class WizardApp(App[int], inherit_bindings=False):
    """Ten steps over one Plan. Every change goes through `edit`, `apply` or `set_plan`."""

    TITLE = "verl-wizard"
    ENABLE_COMMAND_PALETTE = True
    BINDING_GROUP_TITLE = "Everywhere"
    ANIMATION_LEVEL = "none"
    # Without colours the focus has to be seen in characters and their attributes. Underlined, as lists lose `reverse`.
    CSS = """
    OptionList:nocolor:focus > .option-list--option-highlighted { text-style: bold underline; }
    DataTable:nocolor:focus > .datatable--cursor, Select:nocolor:focus > SelectCurrent Static#label,
    Input:nocolor > .input--selection, Input:nocolor > .input--cursor { text-style: reverse; }
    FindingsPanel:nocolor:focus { border-top: heavy $accent; }
    RichLog:nocolor:focus, VerticalScroll:nocolor:focus { border-left: heavy $accent; }
    """
    BINDINGS = APP_BINDINGS

    def __init__(
        self,
        plan: Plan,
        path: Path,
        python: str = "",
        *,
        ascii_only: bool = False,
        offer: Resume | None = None,
        keys: UserKeys = DEFAULT_KEYS,
        theme: str = "",
        going_on: GoingOn | None = None,
    ) -> None:
        super().__init__()
        self.user_keys = keys
        self._asked_python = python
        self.session = Session(self._on_asked_python(plan), path)
        self.findings: tuple[Finding, ...] = ()
        self.inspector = InspectorProcess(self.python)
        self._offer = offer
        self._going_on = going_on
        # Textual answers NO_COLOR with shades of grey, which are colours to a terminal.
        colours = [NoColor()] if self.no_color else []
        self._own_filters = [*colours, JoinFilter(), PrintableFilter(), *([AsciiFilter()] if ascii_only else [])]
        if theme:
            self.theme = theme
        self._steps: dict[str, StepScreen] = {}
        self._judging: Timer | None = None
        self._interrupted_at = -INTERRUPT_SECONDS

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return what is done to every drawn line: colours as the terminal has them, then its characters."""
        return [*super().get_line_filters(), *self._own_filters]

    def get_key_display(self, binding: Binding) -> str:
        """Return a binding's key for the footer, where `^q` is ctrl+q."""
        return shown_key(binding.key).replace("ctrl+", "^")

    def keyed(self, text: str, screen: type[Screen[Any]] = Screen) -> str:
        """Return a text in which `{id}` stands for the keys of that binding, as this person has set them."""
        return keyed(text, self.user_keys.keys, screen, type(self))

    @property
    def plan(self) -> Plan:
        """The answers so far."""
        return self.session.plan

    @property
    def python(self) -> str:
        """The interpreter that trains; empty for the one this runs in."""
        return self.plan.target.python

    def _on_asked_python(self, plan: Plan) -> Plan:
        """Return a Plan with the interpreter of the command line, which goes before the one in a file."""
        return plan.replace("target.python", self._asked_python) if self._asked_python else plan

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
            self.notify(f"{fix.label} ({self.keyed('undo: {undo}')})", markup=False)

    def set_plan(self, plan: Plan) -> None:
        """Take a whole Plan; values nobody chose yet follow a new model, machine or algorithm."""
        from wizard.starter import following

        if self.session.change(following(self.plan, plan)):
            self._changed()

    @property
    def _step_on_top(self) -> StepScreen | None:
        """The step that can be drawn on now: none while the application closes, or while a step is being composed.

        A step shows Plan and findings by itself once it stands.
        """
        screen = self.screen_stack[-1] if self.screen_stack else None
        # One that closes loses its widgets first.
        return screen if isinstance(screen, StepScreen) and screen.is_mounted and screen.children else None

    def _changed(self) -> None:
        self.inspector.python = self.python
        step = self._step_on_top
        if step is not None:
            step.plan_changed(self.plan)
        if self._judging is not None:
            self._judging.stop()
        self._judging = self.set_timer(JUDGE_SECONDS, self._judge)

    def _judge(self) -> None:
        # Here, like the starter's: rules and predictor would double the time to the first paint.
        from wizard.memory.finding import memory_findings
        from wizard.rules import check_plan

        self.findings = (*check_plan(self.plan), *memory_findings(self.plan))
        step = self._step_on_top
        if step is not None:
            step.judged(self.findings)

    def on_mount(self) -> None:
        self.set_keymap(self.user_keys.keys)
        for problem in self.user_keys.problems:
            self.notify(problem, severity="warning", timeout=PROBLEM_SECONDS, markup=False)
        self.go(STEPS[0].id)
        self.call_after_refresh(self._judge)
        self.call_after_refresh(self.warm_inspector)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Only the main thread of a Unix has signal handlers.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, self._terminated, number)
        if self._offer is not None:
            self._ask_resume(self._offer)
        else:
            self._ask_attach()

    def _ask_resume(self, offer: Resume) -> None:
        def answered(resume: bool | None) -> None:
            self._offer = None
            if resume:
                self.session.begin(self._on_asked_python(offer.plan))
                self._changed()
            else:
                try:
                    self.notify(f"The earlier answers are in {self.session.put_aside()}.", markup=False)
                except OSError as error:
                    self.notify(f"The earlier answers stay where they are: {error.strerror}", markup=False)
            self.save()
            self._ask_attach()

        self.push_screen(Confirm(offer.question, "Go on with them", "Start anew", default=True), answered)

    def _ask_attach(self) -> None:
        """Offer to watch the validation that another program runs."""
        found = self._going_on
        if found is None:
            return

        def answered(watch: bool | None) -> None:
            if watch:
                from screens.validate import ValidateScreen

                self.go("validate")
                screen = self._steps["validate"]
                assert isinstance(screen, ValidateScreen)
                # Once it stands.
                screen.call_later(screen.attach, found.folder)

        self.push_screen(Confirm(found.question, "Watch it", "Leave it"), answered)

    @property
    def failure(self) -> Exception | None:
        """The exception that ended the application; None when it ended as it should."""
        error = self._exception
        return error.error if isinstance(error, WorkerFailed) and isinstance(error.error, Exception) else error

    def _fatal_error(self) -> None:
        # Textual would print a page with the values of local variables, some of which may be secret.
        self._keep_answers()
        self.panic()

    def _keep_answers(self) -> None:
        """Save without asking: nobody can answer any more. A file that someone else changed stays as `.bak`."""
        if self._offer is None:
            with contextlib.suppress(OSError):
                self.session.save(overwrite=True)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """No field blinks, since over SSH each blink is bytes; a list shows where in it the keys are."""
        if isinstance(event.widget, Input):
            event.widget.cursor_blink = False
        elif isinstance(event.widget, OptionList) and event.widget.highlighted is None:
            event.widget.action_first()

    @work(exclusive=True, group="inspector")
    async def warm_inspector(self) -> None:
        """Import torch and transformers in the background, before the model step asks."""
        await self.inspector.warm()

    def go(self, step_id: str, path: str = "") -> None:
        """Show a step, at one of its fields if a path is given, and save the answers."""
        if step_id not in self._steps:
            step = next(step for step in STEPS if step.id == step_id)
            self._steps[step_id] = make_screen(step)
            # Installed, a screen keeps what is typed on it, and a validation its course, while another one is shown.
            self.install_screen(self._steps[step_id], step_id)
        screen = self._steps[step_id]
        if path:
            screen.call_later(screen.focus_field, path)
        if self.screen is not screen:
            if isinstance(self.screen, StepScreen):
                if self.screen.pending:
                    self.notify(self.screen.pending, severity="warning", markup=False)
                self.switch_screen(screen)
            else:
                self.push_screen(screen)
        # Last, since it may ask something, which has to be on top.
        self.save()

    def save(self) -> None:
        """Write the answers; when that fails they stay in memory and it is said."""
        if self._offer is not None:
            return
        try:
            self.session.save()
        except FileExists as error:
            question = (
                f"{error.path} was changed by another program. Replace it? Its version stays as {error.path}.bak."
            )
            self.push_screen(Confirm(question, "Replace"), self._save_over)
        except OSError as error:
            self.notify(f"{self.session.path} could not be saved: {error.strerror}", severity="error", markup=False)

    def _save_over(self, agreed: bool | None) -> None:
        if agreed:
            with contextlib.suppress(OSError):
                self.session.save(overwrite=True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keep the steps' commands away from dialogs."""
        return action not in STEP_ACTIONS or isinstance(self.screen_stack[-1], StepScreen)

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
        parts = [self.keyed(screen.guide or screen.intro, type(screen))]
        row = next((node for node in self._focused_path() if isinstance(node, FieldRow)), None)
        if row is not None:
            from wizard.field_help import field_help

            parts.insert(0, field_help(row.path, self.plan))
        parts.append(
            self.keyed(
                "Keys: {back}/{back-letter} back, {next}/{next-letter} next, {fix}/{fix-letter} apply the first fix, "
                "{steps}/{steps-letter} steps, {undo}/{undo-letter} undo, {redo}/{redo-letter} redo, {next-field} and "
                "arrows move, Enter chooses, {leave-field} leaves a field (letters are commands then), {commands} all "
                "commands, {quit} quit. `verl-wizard keys` lists all and says how to change them. "
                "Answers are saved after every step."
            )
        )
        self.push_screen(Help("\n\n".join(part for part in parts if part)))

    def _focused_path(self) -> list[Any]:
        return list(self.focused.ancestors_with_self) if self.focused is not None else []

    def get_system_commands(self, screen: Screen[Any]) -> Any:
        from screens.palette import commands

        yield from super().get_system_commands(screen)
        yield from commands(self)

    def action_fit(self) -> None:
        """Choose batches, rollout, attention and offload anew for the model and machine."""
        from wizard.starter import fitted_plan

        fitted = fitted_plan(self.plan)
        if fitted == self.plan:
            self.notify("These values are already what the wizard would choose.")
        else:
            self.set_plan(fitted)
            self.notify(self.keyed("Batches, rollout, attention and offload are chosen anew (undo: {undo})."))

    def action_compare(self) -> None:
        """Ask for a file and show how its answers differ from these."""
        self.push_screen(Ask("Compare with which file? A Plan or a verl configuration.", FILE_NAME), self._compare)

    def _compare(self, name: str | None) -> None:
        if not name:
            return
        from wizard.plan_diff import difference_text
        from wizard.verl.importer import plan_from_file

        try:
            other, _ = plan_from_file(Path(name).expanduser())
        except (PlanError, OSError) as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self.push_screen(Help(difference_text(self.plan, other, "here", name)))

    @property
    def running(self) -> bool:
        """Whether a validation is going on."""
        return any(getattr(screen, "running", False) for screen in (*self._steps.values(), *self.screen_stack))

    async def action_quit(self) -> None:
        """Save and leave; asks only when something still runs or could not be saved."""
        self.save()
        question = ""
        if self.session.unsaved:
            question = f"{self.session.path} could not be saved. Leave and lose the answers?"
        elif self.running:
            question = "A validation is running. Leave and end it? Answers are saved."
        if question:
            self.push_screen(Confirm(question, "Leave"), lambda leave: self.exit(0) if leave else None)
        else:
            self.exit(0)

    def action_interrupt(self) -> None:
        """ctrl+c: the first time it saves and says how to leave, twice within a few seconds it leaves."""
        now = time.monotonic()
        soon, self._interrupted_at = now - self._interrupted_at < INTERRUPT_SECONDS, now
        self.save()
        if soon:
            self.exit(CANCELLED)
        else:
            self.notify(self.keyed("{interrupt} again leaves. Answers are saved."), timeout=INTERRUPT_SECONDS)

    def _terminated(self, number: int) -> None:
        self._keep_answers()
        self.exit(128 + number)

    async def on_unmount(self) -> None:
        # However it ends, such as with the browser's tab, what was answered last is kept.
        if self._offer is None:
            with contextlib.suppress(OSError, FileExists):
                self.session.save()
        await self.inspector.close()
