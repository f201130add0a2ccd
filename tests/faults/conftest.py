"""A bench for faults: real runs that must fail for the right cause, and pass after the first fix.

Faults come in through what a person controls (files, the Plan, the machine, signals), never through a hook of ours.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wizard.diagnosis import Diagnosis, diagnose_verdict
from wizard.fixing import apply_fix
from wizard.model.catalog import preset
from wizard.model.tiny import TINY_CONFIG, ensure_tiny
from wizard.plan import Fsdp, Model, Plan
from wizard.validation.events import Event
from wizard.validation.launcher import Run
from wizard.validation.plan_spec import spec_from_plan
from wizard.validation.spec import ValidationSpec
from wizard.validation.verdict import Verdict

TOKENS = 64
STEP_LIMIT_SECONDS = 60.0
Act = Callable[[Run, Event], None]


@dataclass(frozen=True)
class Finished:
    """A run that has ended, and what the diagnosis says of it."""

    verdict: Verdict
    diagnosis: Diagnosis | None
    folder: Path
    events: tuple[Event, ...]


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The built-in model's folder."""
    return ensure_tiny()


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the built-in model that a test may damage."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


@pytest.fixture(scope="session")
def passed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Verdicts of runs that were to pass, by what went into them: the same input is run once, whoever tests it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "passed"
    folder.mkdir(exist_ok=True)
    return folder


class Bench:
    """Runs Plans on the CPU."""

    def __init__(self, folder: Path, passed: Path) -> None:
        self._folder = folder
        self._passed = passed
        self._runs = 0

    def run(self, plan: Plan, ranks: int = 1, act: Act | None = None, **changes: Any) -> Finished:
        """Validate the Plan; `act` sees every event as it comes. `changes` go into the spec."""
        self._runs += 1
        folder = self._folder / f"run{self._runs}"
        folder.mkdir(exist_ok=True)
        return asyncio.run(_finish(spec_of(plan, ranks, changes), plan, folder, act))

    def fails(self, cause: str, plan: Plan, ranks: int = 1, act: Act | None = None, **changes: Any) -> Finished:
        """Validate a Plan that must fail, for this cause."""
        found = self.run(plan, ranks, act, **changes)
        assert found.diagnosis is not None, found.verdict
        assert found.diagnosis.cause == cause, found.verdict
        return found

    def passes(self, plan: Plan, ranks: int = 1, **changes: Any) -> None:
        """Validate a Plan that must pass."""
        spec = spec_of(plan, ranks, changes)
        known = self._passed / _input_key(spec, plan.target.python)
        if not known.exists():
            verdict = self.run(plan, ranks, **changes).verdict
            assert verdict.outcome == "passed", verdict
            known.touch()

    def is_cured_by_its_first_fix(self, cause: str, plan: Plan, ranks: int = 1, **changes: Any) -> tuple[Finished, Plan]:
        """Validate a Plan that must fail for this cause, and pass with the diagnosis' first fix."""
        found = self.fails(cause, plan, ranks, **changes)
        assert found.diagnosis is not None
        assert found.diagnosis.fixes, found.diagnosis
        fixed = apply_fix(plan, found.diagnosis.fixes[0])
        assert fixed != plan
        self.passes(fixed, ranks, **changes)
        return found, fixed


@pytest.fixture
def bench(tmp_path: Path, passed: Path) -> Bench:
    """Runs of this test, in folders of its own."""
    return Bench(tmp_path, passed)


def plan_of(model: Path, **actor: Any) -> Plan:
    """Return a Plan of a model folder that differs from the default in the actor's fields given."""
    return Plan(model=Model(id=str(model), attention="sdpa"), architecture=preset("tiny"), actor=Fsdp(**actor))


def shaped(parent: Path, **entries: Any) -> Plan:
    """Return the Plan of a model of which there is only a config.json."""
    folder = parent / "shape"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | entries))
    return dataclasses.replace(plan_of(folder), architecture=None)


def spec_of(plan: Plan, ranks: int, changes: dict[str, Any]) -> ValidationSpec:
    """Return the Plan's short run, on the CPU unless `gpus` are given."""
    given = {name: changes.pop(name) for name in ("tokens", "random_weights", "gpus") if name in changes}
    spec = spec_from_plan(plan, world_size=ranks, **{"gpus": 0, "tokens": TOKENS, **given})
    short = {"benchmark_runs": 0, "step_limit_seconds": STEP_LIMIT_SECONDS}
    changed = dataclasses.replace(spec, **{**short, **changes})
    changes.update(given)
    return changed


async def _finish(spec: ValidationSpec, plan: Plan, folder: Path, act: Act | None) -> Finished:
    run = await Run.start(spec, plan.target.python, folder)
    events = []
    async for event in run.events():
        events.append(event)
        if act is not None:
            act(run, event)
    assert run.verdict is not None
    return Finished(run.verdict, diagnose_verdict(run.verdict, plan), folder, tuple(events))


def _input_key(spec: ValidationSpec, python: str) -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(spec.model).rglob("*")) if spec.model else ():
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(file.relative_to(spec.model).as_posix().encode() + file.read_bytes())
    digest.update(f"{dataclasses.replace(spec, model='', notes=())} {python}".encode())
    return digest.hexdigest()
