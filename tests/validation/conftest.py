"""Real runs of the built-in model with two gloo ranks; each is made once and read by several tests."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wizard.model.tiny import ensure_tiny
from wizard.validation.events import Event
from wizard.validation.launcher import Run
from wizard.validation.spec import ValidationSpec
from wizard.validation.verdict import Verdict


@dataclass(frozen=True)
class Finished:
    """A run that has ended."""

    verdict: Verdict
    events: tuple[Event, ...]
    folder: Path

    def metric(self, name: str, rank: int = 0) -> Any:
        """Return the last value a rank told under a name."""
        values = [e.data[name] for e in self.events if e.kind == "metric" and e.rank == rank and name in e.data]
        assert values, name
        return values[-1]


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The built-in model's folder."""
    return ensure_tiny()


@pytest.fixture(scope="session")
def make_spec(tiny: Path) -> Callable[..., ValidationSpec]:
    """Return specs of short runs on two CPU ranks."""
    spec = ValidationSpec(
        model=str(tiny), model_config={}, world_size=2, device="cpu", strategy="fsdp2", tokens=64, sequence_tokens=32,
        benchmark_runs=0, step_limit_seconds=60,
    )  # fmt: skip

    def make(**changes: Any) -> ValidationSpec:
        return dataclasses.replace(spec, **changes)

    return make


def finish(spec: ValidationSpec, folder: Path) -> Finished:
    """Run to the end."""

    async def main() -> Finished:
        run = await Run.start(spec, folder=folder)
        events = tuple([event async for event in run.events()])
        assert run.verdict is not None
        return Finished(run.verdict, events, folder)

    return asyncio.run(main())
