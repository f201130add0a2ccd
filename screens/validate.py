"""Step 10: the live validation."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Button, Checkbox, Input, Label, Static

from screens.base import StepScreen
from screens.cluster import ClusterScreen
from screens.debug import DebugScreen
from screens.widgets.dialogs import Ask, Confirm
from screens.widgets.tick import Tick
from screens.widgets.validation_panel import ValidationPanel
from wizard.diagnosis import Diagnosis, diagnose_verdict
from wizard.diagnosis.of_path import diagnose_path
from wizard.findings import Fix
from wizard.memory import PredictionError, predict
from wizard.memory.prediction import Prediction
from wizard.model.errors import ModelError, RemoteCodeConsentNeeded
from wizard.plan import Plan
from wizard.text import printable, printable_lines
from wizard.validation.follow import FollowedRun
from wizard.validation.launch import Launch, RayCluster
from wizard.validation.launcher import HERE, Run
from wizard.validation.plan_spec import spec_from_plan
from wizard.validation.run_folder import NoRun
from wizard.validation.spec import Engine, ValidationSpec
from wizard.validation.verdict import Verdict


class ValidateScreen(StepScreen):
    """Starts, watches, pauses, cancels and repeats a validation run."""

    step_id = "validate"
    intro = "Loads, wraps, runs and times the model for real, in processes of its own."
    guide = (
        "The run uses the GPUs of this machine, as many as the Plan has, or two ranks with gloo on its CPU. "
        "With Ray nodes it spreads over so many nodes of the running Ray cluster (RAY_ADDRESS, else the one here). "
        "{validate-start} starts it, {validate-pause} pauses the display, {validate-cancel} cancels; "
        "when it fails, {fix}/{fix-letter} applies the first fix and {validate-start} runs again. {validate-debug} "
        "debugs: short runs from one device to the whole "
        "Plan, each adding one thing, compared with each other. {validate-cluster} compares the nodes: releases, GPUs, "
        "networks, bandwidth, clocks. {validate-log} reads a training's log and says why it "
        "failed. Random weights: only shapes, no checkpoint. "
        "verl's engine: verl's own class, built from the configuration that is written, shards and steps; else torch's "
        "FSDP, used as verl does."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s,f5", "start", "Start", id="validate-start"),
        Binding("p", "pause", "Pause", id="validate-pause"),
        Binding("c", "cancel", "Cancel", id="validate-cancel"),
        Binding("l", "explain", "Log", id="validate-log", tooltip="Say why a training failed, from its log"),
        Binding("d", "debug", "Debug", id="validate-debug"),
        Binding("k", "cluster", "Cluster", id="validate-cluster", tooltip="Compare the nodes before anything runs"),
    ]
    DEFAULT_CSS = """
    ValidateScreen #controls { height: 1; overflow-x: auto; scrollbar-size-horizontal: 0; }
    ValidateScreen #controls Input { width: 8; }
    ValidateScreen #controls Button { min-width: 9; }
    ValidateScreen #controls Label { padding: 0 1; }
    ValidateScreen #diagnosis { height: auto; }
    ValidateScreen #verdict { text-style: bold; height: auto; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._run: Run | FollowedRun | None = None
        self._fix: Fix | None = None
        self._busy = False

    def compose_step(self) -> ComposeResult:
        with Horizontal(id="controls"):
            yield Button("Start", id="start", compact=True)
            yield Label("ranks", markup=False)
            yield Input("", "auto", id="ranks", type="integer", compact=True)
            yield Label("Ray nodes", markup=False)
            yield Input("", "none", id="nodes", type="integer", compact=True)
            yield Tick("random weights", id="random")
            yield Tick("verl's engine", id="verl")
        yield Static(self._keyed("Not run yet: {validate-start} starts it."), id="verdict", markup=False)
        yield Static("", id="diagnosis", markup=False)
        yield ValidationPanel()

    @property
    def first_fix(self) -> Fix | None:
        """What the fix key applies: the diagnosis' first fix."""
        return self._fix

    @property
    def running(self) -> bool:
        """Whether a run of this wizard is going on, or about to; one of somebody else ends with nobody here."""
        return self._busy and not isinstance(self._run, FollowedRun)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what can be done now."""
        if action in ("start", "debug", "cluster", "explain"):
            return not self._busy
        return self._busy if action in ("pause", "cancel") else True

    def action_start(self) -> None:
        """Start a run, or start it again."""
        # Away from the rank field, whose letters would be typed instead of obeyed.
        self.set_focus(self.query_one("#log"))
        self._validate()

    @on(Button.Pressed, "#start")
    def _pressed(self) -> None:
        if self._busy:
            self.notify(self._keyed("A run is going on; {validate-cancel} cancels it."))
        else:
            self.action_start()

    @on(Input.Submitted, "#ranks")
    @on(Input.Submitted, "#nodes")
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self._pressed()

    @property
    def to_copy(self) -> tuple[str, str] | None:
        """The path of the run's log."""
        return None if self._run is None else ("The log's path", str(self._run.folder / "log.txt"))

    def action_pause(self) -> None:
        """Stop or resume drawing; the run itself goes on."""
        panel = self.query_one(ValidationPanel)
        panel.paused = not panel.paused
        self.notify("The display is paused; the run goes on." if panel.paused else "The display goes on.")

    def action_debug(self) -> None:
        """Climb the ladder of short runs, on a screen of its own."""
        self.app.push_screen(DebugScreen(self.app.plan, self._make_spec()))

    def action_cluster(self) -> None:
        """Compare the nodes, on a screen of its own."""
        self.app.push_screen(ClusterScreen(self.app.plan, self._launch()))

    def action_explain(self) -> None:
        """Ask for the log of a training, or a run folder, and say why it failed."""
        self.app.push_screen(Ask("Why did it fail? A training log, or the run folder of a validation."), self._named)

    def _named(self, name: str | None) -> None:
        if name:
            self._read(Path(name).expanduser())

    @work(exclusive=True, group="log", exit_on_error=False)
    async def _read(self, path: Path) -> None:
        self._say(f"Reading {printable(str(path))} …")
        try:
            # A thread: logs of gigabytes take their time.
            found = await asyncio.to_thread(diagnose_path, path, self.app.plan)
        except OSError as error:
            self._say(printable(f"{path} cannot be read: {error.strerror}"))
        except NoRun as error:
            self._say(printable(str(error)))
        else:
            self._say(f"{printable(path.name)}: {'why it failed' if found else 'no failure found'}")
            self._explain(found, found.fixes[0] if found and found.fixes else None)

    async def action_cancel(self) -> None:
        """End the run and all its processes."""
        if isinstance(self._run, FollowedRun):
            question = "Another wizard or command runs this validation. End it there?"
            self.app.push_screen(Confirm(question, "End it"), self._end_followed)
        elif self._run is not None:
            self._say("Cancelling …")
            await self._run.cancel()

    async def _end_followed(self, agreed: bool | None) -> None:
        if agreed and self._busy and self._run is not None:
            self._say("Asked its wizard to end it …")
            try:
                await self._run.cancel()
            except OSError as error:
                self._say(f"It cannot be reached: {error.strerror}")

    def attach(self, folder: Path) -> None:
        """Watch a validation that another program runs."""
        self.set_focus(self.query_one("#log"))
        self._validate(folder)

    @work(exclusive=True, group="validation", exit_on_error=False)
    async def _validate(self, attached: Path | None = None) -> None:
        """Run the Plan, or watch the run whose folder is given, until there is a verdict."""
        self._fix, self._run = None, None
        self._set_busy(True)
        self.query_one("#diagnosis", Static).update("")
        self._say("Starting …")
        try:
            if attached is None:
                await self._start()
            else:
                run = FollowedRun(attached)
                await self._follow(run, run.spec)
        except RemoteCodeConsentNeeded as needed:
            self._say("Not started: nobody has agreed to the model's code as it is now.")
            self._ask_consent(needed)
        except (ModelError, OSError, ValueError) as error:
            self._say(f"Could not start: {printable(str(error))}")
        except Exception:
            self._say("Ended by an error that nobody foresaw.")
            raise
        finally:
            self._set_busy(False)

    def _ask_consent(self, needed: RemoteCodeConsentNeeded) -> None:
        def answered(agreed: bool | None) -> None:
            if agreed:
                self.app.edit("model.revision", needed.revision)
                self.action_start()

        self.app.push_screen(Confirm(printable_lines(needed.question), "Run the code"), answered)

    async def _start(self) -> None:
        """Run the Plan.

        Raises:
            ModelError, OSError, ValueError: it could not be started.
        """
        spec = await asyncio.to_thread(self._make_spec(), self.app.plan)
        await self._follow(await Run.start(spec, self.app.python, launch=self._launch()), spec)

    async def _follow(self, run: Run | FollowedRun, spec: ValidationSpec) -> None:
        """Feed the panel until there is a verdict.

        Raises:
            OSError, ValueError: the folder of a run that is only watched is gone.
        """
        panel = self.query_one(ValidationPanel)
        self._run = run
        panel.begin(spec)
        panel.prediction = _predicted(self.app.plan, spec) if isinstance(run, Run) else None
        panel.say(f"run folder {run.folder}")
        self._say(f"Running {spec.world_size} ranks on {spec.device} …")
        async for event in run.events():
            panel.feed(event)
        panel.finish()
        if run.verdict is not None:
            self._conclude(run.verdict)

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        # The screen may be gone when the application ends a run.
        if self.is_attached:
            self.refresh_bindings()

    def _make_spec(self) -> Callable[[Plan], ValidationSpec]:
        """Return what makes a run of a Plan as this screen's fields ask for; it asks the driver, so in a thread."""
        text = self.query_one("#ranks", Input).value
        ranks = int(text) if text.strip().isdigit() else None
        random_weights = self.query_one("#random", Checkbox).value
        engine: Engine = "verl" if self.query_one("#verl", Checkbox).value else "torch"
        launch, python = self._launch(), self.app.python

        def make(plan: Plan) -> ValidationSpec:
            from wizard.probe.machine import probe_machine

            here = probe_machine().gpus_per_node
            gpus = here and launch.gpus(plan, here)
            return spec_from_plan(
                plan,
                gpus=gpus,
                world_size=ranks or None,
                random_weights=random_weights,
                engine=engine,
                python=python,
            )

        return make

    def _launch(self) -> Launch:
        text = self.query_one("#nodes", Input).value.strip()
        return RayCluster(int(text)) if text.isdigit() and int(text) else HERE

    def _conclude(self, verdict: Verdict) -> None:
        self._say(printable(verdict.sentence))
        found = diagnose_verdict(verdict, self.app.plan)
        # Somebody else's run is of somebody else's Plan.
        mine = found is not None and found.fixes and isinstance(self._run, Run)
        self._explain(found, found.fixes[0] if found and mine else None)

    def _explain(self, found: Diagnosis | None, fix: Fix | None) -> None:
        """Show why a run failed, and what the fix key does about it."""
        self._fix = fix
        if found is None:
            self.query_one("#diagnosis", Static).update("")
            return
        lines = [f"{found.title}: {found.what}", found.remedy]
        if self._fix is not None:
            key, again = self._keyed("{fix}/{fix-letter}"), self._keyed("{validate-start} runs again")
            lines.append(f"{key}: {self._fix.label}; then {again}")
        self.query_one("#diagnosis", Static).update(printable_lines("\n".join(lines)))

    def _keyed(self, text: str) -> str:
        return self.app.keyed(text, ValidateScreen)

    def _say(self, text: str) -> None:
        self.query_one("#verdict", Static).update(text)


def _predicted(plan: Plan, spec: ValidationSpec) -> Prediction | None:
    """Return the predicted peaks of this run: the Plan's, over as many GPUs as the run has."""
    if spec.device != "cuda":
        return None
    machine = dataclasses.replace(plan.machine, nodes=1, gpus_per_node=spec.world_size)
    try:
        return predict(dataclasses.replace(plan, machine=machine))
    except PredictionError:
        return None
