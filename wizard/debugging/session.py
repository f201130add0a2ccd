"""Climbs the ladder, diagnoses the first rung that fails, and climbs again with a fix. No UI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wizard.debugging.compare import Observed, differences
from wizard.debugging.ladder import CHECKS, PLANNED, Rung, ladder
from wizard.diagnosis import Diagnosis, diagnose, diagnose_verdict
from wizard.diagnosis.evidence import Evidence
from wizard.findings import Finding, Fix, Severity
from wizard.fixing import apply_fix
from wizard.plan import Plan
from wizard.rules import check_plan
from wizard.validation.events import Event
from wizard.validation.launcher import Run
from wizard.validation.spec import ValidationSpec
from wizard.validation.verdict import Verdict

Outcome = Literal["passed", "failed", "wrong", "skipped", "does not fit", "cancelled"]
OUT_OF_MEMORY = ("gpu-oom", "host-oom")
"""Beginnings of the causes that say a device or the host is full."""

AGAIN = Fix("the same Plan again", ())
"""A "fix" for something that was mended outside the Plan."""

MakeSpec = Callable[[Plan], ValidationSpec]
StartRun = Callable[[ValidationSpec, str], Awaitable[Run]]


@dataclass(frozen=True)
class RungResult:
    """How one rung went. `wrong`: its run passed, and its numbers disagree with the rung before."""

    rung: Rung
    outcome: Outcome
    why: str = ""
    """One sentence; empty for a rung that passed."""
    observed: Observed = field(default_factory=Observed)
    seconds: float = 0.0
    """From start to end, processes and imports included."""
    folder: Path | None = None
    """Where the run's files are; None where nothing ran."""
    log_tail: str = ""
    kept: bool = False
    """Whether the result is the attempt's before: the same rung with the same spec had passed."""

    @property
    def stops(self) -> bool:
        """Whether the climb ends here."""
        return self.outcome in ("failed", "wrong", "cancelled")


@dataclass
class Attempt:
    """One climb with one Plan."""

    plan: Plan
    fix: Fix | None = None
    """What led here from the attempt before; None for the first one."""
    results: list[RungResult] = field(default_factory=list)
    diagnosis: Diagnosis | None = None

    @property
    def passed(self) -> bool:
        """Whether the Plan's own run, the last rung, passed."""
        return bool(self.results) and self.results[-1].rung.name == PLANNED and self.results[-1].outcome == "passed"


@dataclass(frozen=True)
class RungStarted:
    """A rung's run is about to start."""

    rung: Rung


Step = RungStarted | Event | RungResult


class DebugSession:
    """All attempts of one sitting. `climb` runs the ladder, `apply` changes the Plan for the next climb."""

    def __init__(self, plan: Plan, make_spec: MakeSpec, start: StartRun = Run.start, *, checks: bool = True) -> None:
        """Begin with a Plan.

        Args:
            make_spec: returns the Plan's own run, the last rung; may raise `ModelError`.
            start: starts a run in the target interpreter.
            checks: whether what verl refuses in the configuration is the first rung.
        """
        self.attempts = [Attempt(plan)]
        self._make_spec = make_spec
        self._start = start
        self._checks = checks
        self._run: Run | None = None
        self._cancelled = False

    @property
    def attempt(self) -> Attempt:
        """The attempt that is going on, or the last one."""
        return self.attempts[-1]

    @property
    def plan(self) -> Plan:
        """The Plan with all fixes so far."""
        return self.attempt.plan

    def apply(self, fix: Fix) -> Plan:
        """Begin a new attempt with the fix, or `AGAIN`; its climb reruns what the fix touches and what had failed.

        Raises:
            PlanError: the fix has a value that its field cannot take.
        """
        self.go_on(apply_fix(self.plan, fix), fix)
        return self.plan

    def go_on(self, plan: Plan, fix: Fix) -> None:
        """Begin a new attempt with a Plan that somebody else applied the fix to."""
        self.attempts.append(Attempt(plan, fix))

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """Fixes of the present diagnosis, the cheapest first, without those that lead back to a Plan climbed with."""
        found = self.attempt.diagnosis
        return tuple(fix for fix in found.fixes if not self._tried(fix)) if found else ()

    def _tried(self, fix: Fix) -> bool:
        changed = apply_fix(self.plan, fix)
        return any(attempt.plan == changed for attempt in self.attempts)

    async def cancel(self) -> None:
        """End the climb and its processes."""
        self._cancelled = True
        if self._run is not None:
            await self._run.cancel()

    async def climb(self) -> AsyncIterator[Step]:
        """Run rung after rung until one fails, yielding what happens; results collect in `attempt`.

        Raises:
            ModelError: the model cannot be validated on this machine.
            OSError: a run could not be started.
        """
        self._cancelled = False
        attempt = self.attempt
        planned = await asyncio.to_thread(self._make_spec, attempt.plan)
        if self._checks:
            yield self._take(attempt, await asyncio.to_thread(self._checked, attempt))
            if attempt.results[-1].stops:
                return
        before: RungResult | None = None
        for rung in _rungs_of(attempt.plan, planned):
            known = self._known(rung)
            if rung.spec is None:
                result = RungResult(rung, "skipped", rung.skipped)
            elif known is not None:
                result = known
            else:
                yield RungStarted(rung)
                observed = Observed()
                began = time.monotonic()
                self._run = run = await self._start(rung.spec, attempt.plan.target.python)
                if self._cancelled:
                    await run.cancel()
                async for event in run.events():
                    observed.feed(event)
                    yield event
                self._run = None
                assert run.verdict is not None
                spent = time.monotonic() - began
                result = _judged(attempt, rung, run, run.verdict, observed, before, spent)
            yield self._take(attempt, result)
            if result.stops:
                return
            before = result if result.outcome == "passed" else before

    def _take(self, attempt: Attempt, result: RungResult) -> RungResult:
        attempt.results.append(result)
        return result

    def _known(self, rung: Rung) -> RungResult | None:
        """Return what an earlier attempt found for the same run, where that need not be done again."""
        for attempt in reversed(self.attempts[:-1]):
            if attempt.plan.target != self.plan.target:
                continue
            for result in attempt.results:
                if result.rung == rung and result.outcome in ("passed", "does not fit"):
                    return RungResult(
                        rung, result.outcome, result.why, result.observed, result.seconds, result.folder, kept=True
                    )
        return None

    def _checked(self, attempt: Attempt) -> RungResult:
        rung = Rung(CHECKS, None)
        wrong = next((found for found in check_plan(attempt.plan) if found.severity is Severity.ERROR), None)
        if wrong is None:
            return RungResult(rung, "passed")
        attempt.diagnosis = _of_finding(wrong)
        return RungResult(rung, "failed", wrong.message)


def _rungs_of(plan: Plan, planned: ValidationSpec) -> tuple[Rung, ...]:
    parameters = plan.architecture.parameters if plan.architecture else 0
    machine = plan.machine
    memory_bytes = machine.gpu_memory_bytes if planned.device == "cuda" else machine.host_memory_bytes
    return ladder(planned, parameters=parameters, memory_bytes=memory_bytes)


def _judged(
    attempt: Attempt,
    rung: Rung,
    run: Run,
    verdict: Verdict,
    observed: Observed,
    before: RungResult | None,
    seconds: float,
) -> RungResult:
    def result(outcome: Outcome, why: str = "") -> RungResult:
        return RungResult(rung, outcome, why, observed, seconds, run.folder, run.log_tail())

    if verdict.outcome == "cancelled":
        return result("cancelled", verdict.sentence)
    found = diagnose_verdict(verdict, attempt.plan)
    if found is not None:
        if rung.optional and found.cause.startswith(OUT_OF_MEMORY):
            return result("does not fit", found.title)
        attempt.diagnosis = found
        return result("failed", verdict.sentence)
    assert rung.spec is not None
    if before is None or before.rung.spec is None or not rung.spec.data_shards:
        return result("passed")
    apart = differences(rung.name, rung.spec, observed, before.rung.name, before.observed)
    if not apart:
        return result("passed")
    attempt.diagnosis = diagnose(apart[0], attempt.plan)
    return result("wrong", attempt.diagnosis.what)


def _of_finding(finding: Finding) -> Diagnosis:
    return Diagnosis(
        finding.id,
        f"verl refuses {finding.field}",
        finding.message,
        finding.fixes[0].label if finding.fixes else "Change that field.",
        Evidence(f"{finding.field} = {finding.value}", step=finding.stage.value),
        finding.fixes,
        finding.id,
        finding.source,
    )
