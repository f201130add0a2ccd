"""Ten steps in lines, over the same Plan, rules, predictor, generators and validator as the screens."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from pathlib import Path

from wizard.diagnosis import diagnose_verdict
from wizard.facts import Machine
from wizard.files import FileExists
from wizard.findings import Finding, Fix, Severity
from wizard.findings_text import finding_lines, fix_text
from wizard.fixing import apply_fix
from wizard.memory import PredictionError, predict
from wizard.memory.finding import memory_findings
from wizard.memory.roofline import step_time
from wizard.memory.text import estimate_text
from wizard.model.errors import ModelError, RemoteCodeConsentNeeded
from wizard.model.tiny import TINY_ID, ensure_tiny
from wizard.model.units import NoUnits
from wizard.opening import GoingOn, Resume
from wizard.plain.questions import Question, Wrong, facts_of_step, questions_of
from wizard.plain.talk import Back, GoTo, Move, Talk, Undo, commands_text
from wizard.plan import Plan, PlanError
from wizard.probe.machine import probe_machine
from wizard.rules import check_plan
from wizard.session import Session
from wizard.starter import following
from wizard.steps import STEPS, Step
from wizard.validation.event_text import event_text
from wizard.validation.events import Event
from wizard.validation.follow import FollowedRun
from wizard.validation.launcher import Run
from wizard.validation.plan_spec import spec_from_plan
from wizard.validation.run_folder import NoRun
from wizard.validation.spec import ValidationSpec
from wizard.validation.verdict import Verdict

FOLDER = "verl-run"
CHOSEN_EXIT = {"passed": 0, "cancelled": 130}
"""Of a validation's outcome; every other one is 1."""


class Terminated(BaseException):
    """SIGTERM, or the terminal is gone."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class PlainWizard:
    """Asks step by step; every change goes through the session, so that it can be undone."""

    def __init__(self, session: Session, talk: Talk) -> None:
        self.session = session
        self.written = False
        """Whether files were written."""
        self._talk = talk
        self._step = STEPS[0]
        self._code = 0

    @property
    def plan(self) -> Plan:
        """The answers so far."""
        return self.session.plan

    @property
    def where(self) -> str:
        """The present step, as `2 of 10 (GPUs)`."""
        return f"{STEPS.index(self._step) + 1} of {len(STEPS)} ({self._step.title})"

    def resume(self, offer: Resume) -> bool:
        """Offer the answers of an earlier sitting; returns whether to begin at all."""
        self._talk.say(offer.question)
        try:
            if self._talk.agree("Go on with them?", default=True):
                self.session.begin(offer.plan)
            else:
                self._talk.say(f"The earlier answers are in {self.session.put_aside()}.")
        except (Back, GoTo, Undo):
            return self.resume(offer)
        except OSError as error:
            self._talk.say(f"The earlier answers stay where they are: {error.strerror}")
            return False
        return True

    def offer_to_watch(self, found: GoingOn) -> None:
        """Offer to follow the validation that another program runs; ctrl+c leaves it running."""
        try:
            if self._talk.agree(found.question):
                self._talk.say(f"ctrl+c leaves it; `verl-wizard validate --attach {found.folder} --end` ends it.")
                self._talk.say(asyncio.run(self._watched(FollowedRun(found.folder))).sentence)
        except (Move, KeyboardInterrupt):
            self._talk.say("It goes on.")
        except (NoRun, OSError) as error:
            self._talk.say(str(error))

    async def _watched(self, run: FollowedRun) -> Verdict:
        async for event in run.events():
            self._say_event(event)
        assert run.verdict is not None
        return run.verdict

    def _say_event(self, event: Event) -> None:
        text = event_text(event)
        if text:
            self._talk.say(text.rstrip("\n"))

    def run(self) -> int:
        """Walk through the steps.

        Raises:
            Quit: the person leaves, or the input ends.
        """
        self._talk.say("verl-wizard in lines. At every prompt:\n" + commands_text())
        if self.plan.machine == Machine():
            self._take(self._with_machine())
        index, at_end = 0, False
        while index < len(STEPS):
            self._step = STEPS[index]
            try:
                self._ask_step(at_end=at_end)
                index, at_end = index + 1, False
            except Back:
                index, at_end = max(0, index - 1), True
            except GoTo as move:
                index, at_end = self._named(str(move), index), False
            except Undo:
                self._talk.say("Taken back." if self.session.undo() else "Nothing to undo.")
                at_end = False
            self._save()
        return self._code

    def _save(self) -> None:
        """Write the answers; when that fails they stay in memory and it is said."""
        try:
            self.session.save()
        except FileExists as error:
            self._save_over(error.path)
        except OSError as error:
            self._talk.say(f"{self.session.path} could not be saved: {error.strerror}")

    def _save_over(self, path: Path) -> None:
        question = f"{path} was changed by another program. Replace it? Its version stays as {path}.bak."
        try:
            if self._talk.agree(question):
                self.session.save(overwrite=True)
        except Move:
            self._talk.say("It stays as it is.")
        except OSError as error:
            self._talk.say(f"{path} could not be saved: {error.strerror}")

    def _with_machine(self) -> Plan:
        return dataclasses.replace(self.plan, machine=probe_machine())

    def _named(self, name: str, index: int) -> int:
        for number, step in enumerate(STEPS):
            if name and (name == str(number + 1) or step.title.lower().startswith(name.lower()) or step.id == name):
                return number
        self._talk.say("Steps: " + ", ".join(f"{number} {step.title}" for number, step in enumerate(STEPS, 1)))
        return index

    def _ask_step(self, *, at_end: bool) -> None:
        step = self._step
        self._talk.say(f"\nStep {self.where}\n{step.about}")
        self._ask_all(questions_of(step), at_end=at_end)
        for line in facts_of_step(step, self.plan):
            self._talk.say(line)
        if step.findings_of:
            self._show_findings(step)
        if step.id == "review":
            self._review()
        elif step.id == "validate":
            self._validate()

    def _ask_all(self, questions: list[Question], *, at_end: bool) -> None:
        at, way = (len(questions) - 1, -1) if at_end else (0, 1)
        while 0 <= at < len(questions):
            if questions[at].applies(self.plan):
                try:
                    self._ask(questions[at])
                    way = 1
                except Back:
                    way = -1
            at += way
        if at < 0 and questions:
            raise Back

    def _ask(self, question: Question) -> None:
        while True:
            choices = f" ({', '.join(question.choices)})" if question.choices else ""
            prompt = f"{question.label}{choices} [{question.value(self.plan)}]"
            text = self._talk.ask(prompt, question.help(self.plan))
            if not text and not question.always:
                return
            try:
                self._take(question.take(self.plan, text, self._talk))
                return
            except Wrong as wrong:
                self._talk.say(str(wrong))

    def _take(self, plan: Plan) -> None:
        self.session.change(following(self.plan, plan))

    def _findings(self, step: Step) -> list[Finding]:
        order = list(Severity)
        found = (*check_plan(self.plan), *memory_findings(self.plan))
        mine = (finding for finding in found if finding.field.startswith(step.findings_of))
        return sorted(mine, key=lambda finding: order.index(finding.severity))

    def _show_findings(self, step: Step) -> None:
        while True:
            findings = self._findings(step)
            fixes: list[Fix] = []
            for finding in findings:
                for line in finding_lines(finding):
                    if not line.startswith("  fix: "):
                        self._talk.say(line)
                for fix in finding.fixes:
                    fixes.append(fix)
                    self._talk.say(f"  fix {len(fixes)}: {fix_text(fix)}")
            if not findings:
                self._talk.say("No findings here.")
            if not self._chose_fix(fixes, "Number of a fix to apply, Enter goes on"):
                return

    def _chose_fix(self, fixes: list[Fix], question: str) -> bool:
        """Ask for a fix and apply it; returns whether one was applied."""
        while fixes:
            answer = self._talk.ask(question, "A fix changes the fields that it names; :undo takes it back.")
            if not answer:
                return False
            if answer.isdecimal() and 1 <= int(answer) <= len(fixes):
                try:
                    self._take(apply_fix(self.plan, fixes[int(answer) - 1]))
                    return True
                except PlanError as error:
                    self._talk.say(str(error))
            else:
                self._talk.say(f"There are fixes 1 to {len(fixes)}.")
        return False

    def _review(self) -> None:
        from generators import render

        self._talk.say(self._estimate())
        if any(finding.severity is Severity.ERROR for finding in self._findings(self._step)):
            self._talk.say("Files can be written once no error is left: :step NAME goes to where it is.")
            self._talk.ask("Enter goes on without files")
            return
        folder = Path(self._talk.ask(f"folder for the files, `none` for none [{FOLDER}]") or FOLDER).expanduser()
        if str(folder) != "none":
            self._write(render(self.plan), folder, overwrite=False)

    def _estimate(self) -> str:
        try:
            return estimate_text(predict(self.plan), step_time(self.plan))
        except (PredictionError, NoUnits) as error:
            return str(error)

    def _write(self, files: dict[str, str], folder: Path, *, overwrite: bool) -> None:
        from generators import write

        try:
            written = write(files, folder, overwrite=overwrite)
            if self.plan.model.id == TINY_ID:
                self._talk.say("Building the tiny model that run.yaml names …")
                ensure_tiny(self.plan.target.python)
        except FileExists as error:
            question = f"{error.path} exists and differs. Replace it? The old version stays as {error.path.name}.bak."
            if self._talk.agree(question):
                self._write(files, folder, overwrite=True)
        except (OSError, ModelError) as error:
            self._talk.say(f"{folder} could not be written: {error}")
            self._review()
        else:
            self.written = True
            self._talk.say("Written: " + ", ".join(str(path) for path in written))

    def _validate(self) -> None:
        while self._talk.agree("Run the validation now?", help="No ends the wizard; answers and files are kept."):
            text = self._talk.ask("ranks [as many as the Plan has and GPUs are here]")
            random_weights = self._talk.agree("random weights?", help="Only shapes are proved; no checkpoint is read.")
            verls = self._talk.agree("verl's own engine?", help="No runs torch's FSDP as verl uses it, without verl.")
            try:
                spec = spec_from_plan(
                    self.plan,
                    engine="verl" if verls else "torch",
                    gpus=probe_machine().gpus_per_node,
                    world_size=int(text) if text.isdecimal() and int(text) else None,
                    random_weights=random_weights,
                )
                verdict = asyncio.run(self._follow(spec))
            except RemoteCodeConsentNeeded as needed:
                self._talk.say(needed.question)
                if self._talk.agree("Run the code?"):
                    self._take(self.plan.replace("model.revision", needed.revision))
                continue
            except (ModelError, OSError, ValueError) as error:
                self._talk.say(f"Could not start: {error}")
                self._code = 1
                continue
            self._code = CHOSEN_EXIT.get(verdict.outcome, 1)
            self._talk.say(verdict.sentence)
            found = diagnose_verdict(verdict, self.plan)
            if found is None:
                continue
            self._talk.say(f"{found.title}: {found.what}\n{found.remedy}")
            for number, fix in enumerate(found.fixes, 1):
                self._talk.say(f"  fix {number}: {fix_text(fix)}")
            self._chose_fix(list(found.fixes), "Number of a fix to apply before running again, Enter for none")

    async def _follow(self, spec: ValidationSpec) -> Verdict:
        run = await Run.start(spec, self.plan.target.python)
        ended: list[int] = []
        loop = asyncio.get_running_loop()

        def end(number: int) -> None:
            ended.append(number)
            tasks.append(loop.create_task(run.cancel()))

        tasks: list[asyncio.Task[None]] = []
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        for number in before:
            loop.add_signal_handler(number, end, number)
        try:
            self._talk.say(f"Running {spec.world_size} ranks on {spec.device}; ctrl+c cancels. Run folder {run.folder}")
            async for event in run.events():
                self._say_event(event)
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)
        gone = [number for number in ended if number != signal.SIGINT]
        if gone:
            raise Terminated(gone[0])
        assert run.verdict is not None
        return run.verdict
