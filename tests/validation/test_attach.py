"""A run that goes on in another process: seen through the kernel's lock, followed to its verdict, ended on request."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.validation.test_ends import DEADLINE_SECONDS, processes_of, until
from wizard.model.catalog import preset
from wizard.plan import Model, Plan
from wizard.plan_file import FILE_NAME, plan_to_yaml
from wizard.validation.run_folder import NoRun, goes_on, read_spec_of, run_going_on, write_result
from wizard.validation.spec import ValidationSpec, write_spec
from wizard.validation.verdict import Verdict

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def wizard(*arguments: str, state: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a command of ours with run folders of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "wizard", *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "XDG_STATE_HOME": str(state)}, start_new_session=True, **options,
    )  # fmt: skip


@pytest.fixture
def owner(tmp_path: Path, tiny: Path) -> Iterator[subprocess.Popen[str]]:
    """A `validate` whose ranks have begun and will not come to an end by themselves for a while."""
    plan = Plan(model=Model(id=str(tiny), attention="sdpa"), architecture=preset("tiny"))
    (tmp_path / FILE_NAME).write_text(plan_to_yaml(plan))
    process = wizard("validate", str(tmp_path), "--cpu", "--tokens", "65536", "--json", state=tmp_path / "state")
    until(
        lambda: process.poll() is not None or bool(list((tmp_path / "state").rglob("rank1.jsonl"))), "both ranks began"
    )
    assert process.poll() is None, process.communicate()
    yield process
    process.kill()
    process.communicate()


def test_another_command_follows_a_run_and_ends_it(owner: subprocess.Popen[str], tmp_path: Path):
    state = tmp_path / "state"
    folder = run_going_on(state / "verl-wizard" / "runs")
    assert folder is not None
    follower = wizard("validate", "--attach", state=state)
    assert follower.stderr is not None
    assert str(folder) in follower.stderr.readline()
    # Leaving does not end what belongs to somebody else.
    follower.send_signal(signal.SIGINT)
    assert follower.wait(DEADLINE_SECONDS) == 130
    follower.communicate()
    assert processes_of(folder)
    assert owner.poll() is None

    ending = wizard("validate", "--attach", str(folder), "--end", "--json", state=state)
    told, _ = ending.communicate(timeout=DEADLINE_SECONDS)
    own, _ = owner.communicate(timeout=DEADLINE_SECONDS)
    assert (ending.returncode, owner.returncode) == (130, 130)
    # Both were told the same: the events of all ranks from the first one on, then one verdict.
    assert sorted(told.splitlines()) == sorted(own.splitlines())
    assert json.loads(told.splitlines()[-1])["outcome"] == "cancelled"
    assert processes_of(folder) == []
    assert not goes_on(folder)


def test_a_killed_owner_is_told_as_such(owner: subprocess.Popen[str], tmp_path: Path):
    state = tmp_path / "state"
    folder = run_going_on(state / "verl-wizard" / "runs")
    assert folder is not None
    follower = wizard("validate", "--attach", str(folder), state=state)
    assert follower.stderr is not None
    follower.stderr.readline()
    owner.kill()
    told, _ = follower.communicate(timeout=DEADLINE_SECONDS)
    assert follower.returncode == 1
    assert told.splitlines()[-1].startswith("Lost: the program that ran it ended without a verdict")
    until(lambda: processes_of(folder) == [], "no process of the run is left")
    assert run_going_on(state / "verl-wizard" / "runs") is None


@pytest.fixture
def finished(make_spec: Callable[..., ValidationSpec], tmp_path: Path) -> Path:
    """The folder of a run that has ended, with a heartbeat from the future: the clock was set back since."""
    write_spec(make_spec(), tmp_path / "spec.json")
    (tmp_path / "owner.lock").touch()
    beat = tmp_path / "rank0.alive"
    beat.touch()
    os.utime(beat, (4e9, 4e9))
    return tmp_path


def test_no_clock_makes_an_ended_run_go_on(finished: Path):
    assert run_going_on(finished.parent) is None
    write_result(finished, Verdict("passed"))
    follower = wizard("validate", "--attach", str(finished), state=finished)
    told, _ = follower.communicate(timeout=DEADLINE_SECONDS)
    assert (follower.returncode, told) == (0, "Passed: every step ran on every rank.\n")


@pytest.mark.parametrize("spec", ["", "[]", "{}", '{"world_size": 1e99}', "\x00"])
def test_a_folder_that_is_no_run_is_refused(finished: Path, spec: str):
    (finished / "spec.json").write_text(spec)
    with pytest.raises(NoRun, match="spec"):
        read_spec_of(finished)
