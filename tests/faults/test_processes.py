"""Ranks that die, stop, sleep or run out of memory, disk or network."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Act, Bench, Finished, plan_of, shaped
from tests.faults.models import HEALTHY, consenting, with_own_code
from wizard.plan import Plan
from wizard.validation.events import Event
from wizard.validation.launcher import Run

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals, cgroups and /proc are Linux's"),
]
HUNG_SECONDS = 12.0


def send(number: int, step: str, rank: int) -> Act:
    """Signal a rank once it is in the step after `step`."""

    def act(run: Run, event: Event) -> None:
        if (event.kind, event.step, event.rank) == ("step_finished", step, rank):
            os.kill(int((run.folder / f"rank{rank}.alive").read_text()), number)

    return act


def told(found: Finished) -> str:
    assert found.diagnosis is not None
    return found.diagnosis.what


def test_kill_9(bench: Bench, tiny: Path):
    found = bench.fails("killed-by-signal", plan_of(tiny), act=send(signal.SIGKILL, "environment", 0))
    assert found.verdict.rank == 0
    bench.passes(plan_of(tiny))


def test_crash_in_native_code(bench: Bench, tiny: Path):
    found = bench.fails("crashed", plan_of(tiny), act=send(signal.SIGSEGV, "environment", 0))
    assert "SIGSEGV" in told(found)


def test_stopped_rank(bench: Bench, tiny: Path):
    found = bench.fails(
        "hang", plan_of(tiny), ranks=2, act=send(signal.SIGSTOP, "load", 1), step_limit_seconds=HUNG_SECONDS,
        benchmark_runs=100,
    )  # fmt: skip
    assert "rank 1 is stopped (SIGSTOP)" in told(found)
    assert 1 in found.verdict.behind


def test_sleeping_rank_is_named_with_its_frame_and_the_other_with_its_collective(bench: Bench, model: Path):
    code = HEALTHY + """
    def forward(self, *args, **kwargs):
        wait_for_a_file(self)
        return super().forward(*args, **kwargs)


def wait_for_a_file(model):
    import time
    if torch.distributed.get_rank() == 1:
        time.sleep(3600)
"""
    plan = plan_of(with_own_code(model, code))
    plan = consenting(plan)
    found = bench.fails("hang", plan, ranks=2, step_limit_seconds=HUNG_SECONDS)
    assert found.verdict.behind == (1,)
    assert "rank 1 is in wait_for_a_file (modeling_mine.py:" in told(found)
    stacks = {stack["rank"]: stack for stack in found.verdict.failure["stacks"]}
    assert stacks[0]["step"] == stacks[1]["step"] == "forward"
    assert "rank 0 waits in" in told(found)
    assert "gather" in told(found)


def large(folder: Path) -> Plan:
    """Return the Plan of a model of 31 million parameters, which take 16 bytes each in an update: 0.5 GB."""
    return shaped(folder, intermediate_size=40_000)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup of 700 MiB below our own, where this machine lets us make one."""
    line = next((x for x in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in x or x.startswith("0::")), "")
    kind, path = ("memory", "memory.limit_in_bytes") if ":memory:" in line else ("", "memory.max")
    group = Path("/sys/fs/cgroup", kind, line.rpartition(":")[2].lstrip("/"), f"verl-wizard-{os.getpid()}")
    try:
        group.mkdir()
        (group / path).write_text(str(700 << 20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    yield group
    group.rmdir()


def test_exhausted_cgroup(bench: Bench, cgroup: Path, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho $$ > {cgroup}/cgroup.procs\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    plan = large(tmp_path)
    small = dataclasses.replace(plan, target=dataclasses.replace(plan.target, python=str(python)))
    found = bench.fails("host-oom", small, random_weights=True)
    assert str(cgroup) in found.verdict.cause
    limit = next(file for file in ("memory.limit_in_bytes", "memory.max") if (cgroup / file).exists())
    (cgroup / limit).write_text(str(4 << 30))
    bench.passes(small, random_weights=True)


def test_exhausted_address_space(bench: Bench, tmp_path: Path):
    def limit(run: Run, event: Event) -> None:
        if (event.kind, event.step) == ("step_finished", "load"):
            pid = int((run.folder / "rank0.alive").read_text())
            used_bytes = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            # The gradients take 123 MB, AdamW's moments twice as much.
            resource.prlimit(pid, resource.RLIMIT_AS, (used_bytes + (200 << 20),) * 2)

    plan = large(tmp_path)
    found = bench.fails("host-oom", plan, act=limit, random_weights=True)
    memory = found.verdict.failure["memory"]
    assert 0 < memory["resident_bytes"] < memory["address_space_limit_bytes"]
    assert "ulimit -v" in told(found)
    bench.passes(plan, random_weights=True)


def test_full_disk(bench: Bench, tiny: Path, tmp_path: Path):
    folder = tmp_path / "run1"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")

    def fill(run: Run, event: Event) -> None:
        if (event.kind, event.step) == ("step_started", "load"):
            with contextlib.suppress(OSError), (folder / "core").open("wb", buffering=0) as stream:
                while stream.write(bytes(4096)):
                    continue

    try:
        found = bench.fails("disk-full", plan_of(tiny), act=fill, benchmark_runs=300)
    finally:
        subprocess.run(["umount", folder], check=True)
    assert str(folder) in found.verdict.cause
    bench.passes(plan_of(tiny))


def test_network_interface_that_is_not_there(bench: Bench, tiny: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    found = bench.fails("network-interface", plan_of(tiny))
    assert "nosuch0" in told(found)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    bench.passes(plan_of(tiny))


def test_interpreter_without_torch(bench: Bench, tiny: Path, tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    plan = plan_of(tiny)
    bare = dataclasses.replace(plan, target=dataclasses.replace(plan.target, python=str(tmp_path / "bare/bin/python")))
    bench.is_cured_by_its_first_fix("torch-missing", bare)
