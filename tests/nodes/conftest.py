"""A Ray cluster of two nodes on this machine, and runs on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.validation.conftest import Finished, make_spec, tiny  # noqa: F401
from wizard.validation.events import Event
from wizard.validation.launch import Launch
from wizard.validation.launcher import RUN_VARIABLE, Run
from wizard.validation.spec import ValidationSpec


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of two CPUs each; more can be added and taken away."""
    pytest.importorskip("ray", reason="Ray is not installed in this interpreter")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=2)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def follow(
    spec: ValidationSpec, folder: Path, launch: Launch, act: Callable[[Run, Event], bool] | None = None
) -> tuple[Finished, float]:
    """Run to the end, offering every event to `act` until it acts; return also the seconds since it did."""

    async def main() -> tuple[Finished, float]:
        folder.mkdir(exist_ok=True)
        run = await Run.start(spec, folder=folder, launch=launch)
        events, acted = [], 0.0
        async for event in run.events():
            events.append(event)
            if act is not None and not acted and act(run, event):
                acted = time.monotonic()
        assert run.verdict is not None
        return Finished(run.verdict, tuple(events), folder), time.monotonic() - acted

    return asyncio.run(main())


def processes_of(folder: Path) -> list[str]:
    """Processes that carry the mark of the folder's run; those of Ray's prestarted workers do not."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_VARIABLE) == str(folder.resolve()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
