"""The wizard in lines: from the first question to files that verl takes, by pipe and in a terminal."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plain.verl_takes import ACCEPTED_BY_VERL
from wizard.model.tiny import ensure_tiny
from wizard.plan_file import FILE_NAME, load_plan
from wizard.steps import STEPS

DEADLINE_SECONDS = 60
MACHINE = "8x80GB,cc9.0,nvlink"


def piped(lines: list[str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the wizard with an answer a line."""
    return subprocess.run(
        [sys.executable, "-m", "wizard", *arguments], input="".join(f"{line}\n" for line in lines),
        capture_output=True, text=True, cwd=folder, check=False, timeout=DEADLINE_SECONDS * 3,
    )  # fmt: skip


@pytest.mark.verl
@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed in this interpreter")
def test_a_pipe_leads_to_files_that_verl_takes(tmp_path: Path):
    ensure_tiny()
    answers = [
        ":step gpus", MACHINE, "1", "tiny", ":step offload", "", "", "", "", "", "no", "",
        "", "2048", ":step algorithm", ":step placement", "rloo", ":step review", "out", "no",
    ]  # fmt: skip
    done = piped(answers, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    plan = load_plan(tmp_path / "out" / FILE_NAME)
    assert plan == load_plan(tmp_path / FILE_NAME)
    assert (plan.machine.world_size, plan.actor.reshard_after_forward, plan.algorithm.name) == (8, False, "rloo")
    verdict = subprocess.run(
        [sys.executable, "-c", ACCEPTED_BY_VERL, str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert verdict.returncode == 0, verdict.stderr[-2000:]
    assert verdict.stdout.split()[-5:] == ["tiny-model", "2048", "8", "False", "rloo"]
    assert "Step 7 of 10 (Sequence & batches)" in done.stdout
    assert "Steps: 1 Environment" in done.stdout, "a step that there is not is answered with those there are"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout)


def test_a_finding_is_said_and_its_fix_applied_and_taken_back(terminal: Dumb, tmp_path: Path):
    start = [":step gpus", "2x24GB", "1", ":step model", "Qwen/Qwen2.5-7B-Instruct", ":step batches"]
    ask_ulysses = [*start, *[""] * 8, "3", *[""] * 9]
    done = piped([*ask_ulysses, ":quit"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ERROR .*ulysses", done.stdout, re.MULTILINE)
    assert load_plan(tmp_path / FILE_NAME).actor.ulysses_size == 3
    number = re.search(r"fix (\d+): .*ulysses_size=\d", done.stdout)
    assert number, done.stdout[-3000:]
    other = tmp_path / "fixed"
    other.mkdir()
    done = piped([*ask_ulysses, number[1], ":quit"], other)
    assert load_plan(other / FILE_NAME).actor.ulysses_size != 3
    third = tmp_path / "undone"
    third.mkdir()
    done = piped([*ask_ulysses, number[1], ":undo", ":quit"], third)
    assert "Taken back." in done.stdout
    assert load_plan(third / FILE_NAME).actor.ulysses_size == 3


def test_wrong_answers_are_explained_and_asked_again(tmp_path: Path):
    done = piped([":step gpus", "many", MACHINE, "0", "2", "no/such/model/at/all", "tiny", ":quit"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("GPUs of one node") == 2
    plan = load_plan(tmp_path / FILE_NAME)
    assert (plan.machine.nodes, plan.machine.gpus_per_node, plan.model.id) == (2, 8, "tiny")


def test_input_that_ends_early_is_a_usage_error_and_keeps_the_answers(tmp_path: Path):
    done = piped([":step gpus", MACHINE], tmp_path)
    assert done.returncode == 2
    assert "2 of 10 (GPUs)" in done.stderr
    again = piped(["yes", ":step placement", ":quit"], tmp_path)
    assert "This folder holds answers" in again.stdout
    assert again.returncode == 0
    assert load_plan(tmp_path / FILE_NAME).machine.gpus_per_node == 8


def test_files_are_replaced_only_with_consent(tmp_path: Path):
    ensure_tiny()
    theirs = tmp_path / "out" / "run.yaml"
    theirs.parent.mkdir()
    theirs.write_text("mine: true\n", encoding="utf-8")
    to_review = [":step gpus", MACHINE, "1", "tiny", ":step review", "out"]
    assert piped([*to_review, "no", ":quit"], tmp_path).returncode == 0
    assert theirs.read_text(encoding="utf-8") == "mine: true\n"
    assert piped(["no", *to_review, "yes", "no"], tmp_path).returncode == 0
    assert "verl-wizard" in theirs.read_text(encoding="utf-8")
    assert theirs.with_name("run.yaml.bak").read_text(encoding="utf-8") == "mine: true\n"


@pytest.mark.slow
def test_the_live_validation_is_lines(tmp_path: Path):
    """Two gloo ranks for real: a class that is not there fails, its fix passes."""
    pytest.importorskip("torch")
    ensure_tiny()
    answers = [
        ":step gpus",
        "cpu",
        "1",
        "tiny",
        "Nope",
        "",
        ":step validate",
        *("yes", "", "no", "no"),
        "1",
        *("yes", "", "no", "no"),
        "no",
    ]
    done = piped(answers, tmp_path)
    assert "Failed in step wrap" in done.stdout, done.stdout[-3000:]
    assert "Passed: every step ran on every rank." in done.stdout, done.stdout[-3000:]
    assert re.search(r"forward +done in \d+\.\d\d s", done.stdout)
    assert done.returncode == 0, done.stderr


class Dumb:
    """`python -m wizard` in a pseudo-terminal that can only print lines."""

    def __init__(self, folder: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ.update(TERM="dumb")
            os.execv(sys.executable, [sys.executable, "-m", "wizard"])
        self.seen = b""

    def answer(self, text: str, until: str) -> None:
        """Type a line and read until a text comes."""
        self.seen = b""
        os.write(self.fd, text.encode())
        deadline = time.monotonic() + DEADLINE_SECONDS
        while until.encode() not in self.seen:
            assert time.monotonic() < deadline, self.seen[-1000:]
            self._read()

    def end(self) -> int:
        """Wait for its end; the exit code."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, "it did not end"
            self._read()

    def _read(self) -> None:
        if select.select([self.fd], [], [], 0.2)[0]:
            try:
                self.seen += os.read(self.fd, 65536)
            except OSError:
                time.sleep(0.05)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Dumb]:
    found = Dumb(tmp_path)
    found.answer("", "interpreter that trains")
    yield found
    os.close(found.fd)
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(found.pid, signal.SIGKILL)
        os.waitpid(found.pid, 0)


def test_a_dumb_terminal_gets_lines_with_help_and_the_way_back(terminal: Dumb, tmp_path: Path):
    terminal.answer(":step precision\n", "strategy (fsdp, fsdp2) [fsdp2] > ")
    terminal.answer("?\n", "actor_rollout_ref.actor.strategy")
    terminal.answer("fsdp\n", "master dtype (fp32, bf16, fp16) [fp32] > ")
    terminal.answer(":back\n", "strategy (fsdp, fsdp2) [fsdp] > ")
    terminal.answer(":back\n", "Step 4 of 10 (Layer classes)")
    assert b"\x1b" not in terminal.seen
    os.write(terminal.fd, b":quit\n")
    assert terminal.end() == 0
    assert load_plan(tmp_path / FILE_NAME).actor.strategy == "fsdp"


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 128 + signal.SIGHUP), (None, 130)]
)
def test_whatever_ends_it_the_answers_are_kept(terminal: Dumb, tmp_path: Path, how: signal.Signals | None, code: int):
    terminal.answer(":step precision\n", "strategy (fsdp, fsdp2)")
    terminal.answer("fsdp\n", "master dtype")
    if how is None:
        os.write(terminal.fd, b"\x03")
    else:
        os.kill(terminal.pid, how)
    assert terminal.end() == code
    assert load_plan(tmp_path / FILE_NAME).actor.strategy == "fsdp"


def test_the_steps_are_those_of_the_screens():
    from screens.steps import STEPS as SHOWN

    assert SHOWN is STEPS
