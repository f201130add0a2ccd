"""However a run ends, it ends in one verdict and leaves no process behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.models import HEALTHY, with_own_code
from wizard.model.catalog import preset
from wizard.plan import Model, Plan
from wizard.plan_file import FILE_NAME, plan_to_yaml
from wizard.validation import launcher
from wizard.validation import verdict as verdict_module
from wizard.validation.launcher import RUN_VARIABLE, Run
from wizard.validation.spec import ValidationSpec
from wizard.validation.verdict import Verdict

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
Specs = Callable[..., ValidationSpec]
DEADLINE_SECONDS = 60


def processes_of(folder: Path) -> list[int]:
    """Every process that carries the mark of a folder's run in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_VARIABLE) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Wait for a condition, fail after the deadline."""
    deadline = time.monotonic() + seconds
    pause = __import__("threading").Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        pause.wait(0.05)


def run_and(spec: ValidationSpec, folder: Path, act: Callable[[Run], None], when: str) -> tuple[Verdict, float]:
    """Start a run, act once rank 0 has begun the step `when`, and return the verdict and how long it took after."""

    async def main() -> tuple[Verdict, float]:
        run = await Run.start(spec, folder=folder)
        acted_at = 0.0
        async for event in run.events():
            if not acted_at and event.kind == "step_started" and event.step == when and event.rank == 1:
                acted_at = time.monotonic()
                act(run)
        assert acted_at, "the step was never begun"
        assert run.verdict is not None
        return run.verdict, time.monotonic() - acted_at

    return asyncio.run(main())


def pid_of(run: Run, rank: int) -> int:
    pid = run.state.ranks[rank].pid
    assert pid
    return pid


def test_killed_rank_is_lost_with_its_signal(make_spec: Specs, tmp_path: Path):
    verdict, seconds = run_and(
        make_spec(benchmark_runs=200), tmp_path, lambda run: os.kill(pid_of(run, 1), signal.SIGKILL), "benchmark"
    )
    assert (verdict.outcome, verdict.rank) == ("lost", 1), verdict.sentence
    assert "SIGKILL" in verdict.cause
    assert seconds < 30
    assert processes_of(tmp_path) == []


def test_hung_rank_times_out_and_is_named(make_spec: Specs, tmp_path: Path):
    spec = make_spec(benchmark_runs=500, step_limit_seconds=6)
    verdict, _ = run_and(spec, tmp_path, lambda run: os.kill(pid_of(run, 1), signal.SIGSTOP), "benchmark")
    # A stopped process gives no heartbeat either; the step's limit is the shorter one here.
    assert verdict.outcome in ("timed out", "failed"), verdict.sentence
    assert verdict.step == "benchmark"
    assert processes_of(tmp_path) == []


STUBBORN = HEALTHY + """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
# A daemon as a logger or a data loader may leave one: in a session of its own, its parent gone.
IGNORE = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork() and os._exit(0); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", IGNORE], start_new_session=True).wait()
"""
"""A model whose ranks do not end when they are told to, and each leave a process that does not either."""


@pytest.fixture
def stubborn(make_spec: Specs, tiny: Path, tmp_path: Path) -> ValidationSpec:
    model = with_own_code(Path(shutil.copytree(tiny, tmp_path / "model")), STUBBORN)
    return make_spec(model=str(model), trust_remote_code=True, benchmark_runs=500)


def daemons_of(folder: Path) -> int:
    """How many daemons the ranks have left behind."""
    lines = (" ".join(psutil.Process(pid).cmdline()) for pid in processes_of(folder))
    return sum("time.sleep(600)" in line for line in lines)


def test_cancel_ends_even_what_ignores_it(stubborn: ValidationSpec, tmp_path: Path):
    tasks: list[asyncio.Task[None]] = []

    def cancel(run: Run) -> None:
        assert daemons_of(tmp_path) == 2
        tasks.append(asyncio.get_running_loop().create_task(run.cancel()))

    verdict, _ = run_and(stubborn, tmp_path, cancel, "benchmark")
    assert verdict.outcome == "cancelled", verdict.sentence
    assert processes_of(tmp_path) == []


def test_killed_agent_takes_its_ranks_and_their_daemons_with_it(stubborn: ValidationSpec, tmp_path: Path):
    def kill_agent(run: Run) -> None:
        assert daemons_of(tmp_path) == 2
        os.kill(run._process.pid, signal.SIGKILL)

    verdict, _ = run_and(stubborn, tmp_path, kill_agent, "benchmark")
    assert verdict.outcome == "lost", verdict.sentence
    until(lambda: processes_of(tmp_path) == [], "no process of the run is left")


def test_a_stopped_agent_does_not_hold_up_the_end(make_spec: Specs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It cannot end anybody, nor be asked to; its folder is gone besides, so that nobody can tell anything."""
    monkeypatch.setattr(launcher, "END_SECONDS", 1.0)
    tasks: list[asyncio.Task[None]] = []

    def stop(run: Run) -> None:
        os.kill(run._process.pid, signal.SIGSTOP)
        shutil.rmtree(tmp_path)
        tasks.append(asyncio.get_running_loop().create_task(run.cancel()))

    verdict, seconds = run_and(make_spec(benchmark_runs=500), tmp_path, stop, "benchmark")
    assert verdict.outcome == "cancelled", verdict.sentence
    assert seconds < 30
    until(lambda: processes_of(tmp_path) == [], "no process of the run is left")


def test_a_vanished_run_folder_is_named(make_spec: Specs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verdict_module, "SILENT_SECONDS", 2.0)
    spec = make_spec(benchmark_runs=5000)
    verdict, _ = run_and(spec, tmp_path, lambda run: shutil.rmtree(tmp_path), "benchmark")
    assert verdict.outcome == "lost", verdict.sentence
    assert f"run folder {tmp_path} was removed" in verdict.cause
    assert processes_of(tmp_path) == []


@pytest.fixture
def plan_folder(tmp_path: Path, tiny: Path) -> Path:
    plan = Plan(model=Model(id=str(tiny), attention="sdpa"), architecture=preset("tiny"))
    (tmp_path / FILE_NAME).write_text(plan_to_yaml(plan))
    return tmp_path


@pytest.fixture
def command(plan_folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`verl-wizard validate` in the middle of a run, and the run's folder."""
    state = plan_folder / "state"
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    with (plan_folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "wizard", "validate", str(plan_folder), "--cpu", "--tokens", "65536", "--json"],
            stdout=out, stderr=subprocess.DEVNULL, env=environment, start_new_session=True,
        )  # fmt: skip
    runs = state / "verl-wizard" / "runs"
    until(lambda: process.poll() is not None or len(list(runs.glob("*/rank1.jsonl"))) == 1, "both ranks started")
    assert process.poll() is None, (plan_folder / "out").read_text()
    yield process, next(runs.iterdir())
    if process.poll() is None:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGKILL, -9)]
)
def test_signals_to_the_command_leave_no_orphan(
    command: tuple[subprocess.Popen[bytes], Path], number: signal.Signals, code: int
):
    process, folder = command
    assert processes_of(folder)
    process.send_signal(number)
    assert process.wait(DEADLINE_SECONDS) == code
    until(lambda: processes_of(folder) == [], "no process of the run is left")
