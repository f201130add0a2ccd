"""Stacks as CPython's faulthandler prints them, of a process that really hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wizard.validation.stacks import Frame, RankStack, ask_stacks, parse_stacks, stack_file
from wizard.validation.verdict import Verdict, with_stacks

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
CODE = """
import faulthandler, signal, sys, threading, time
faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "w"), all_threads=True)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
threading.Timer(0.5, print, ["ready"], {"flush": True}).start()
def wait_for_ever():
    time.sleep(600)
def main():
    wait_for_ever()
main()
"""


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "_target_entry.py"
    script.write_text(CODE)
    process = subprocess.Popen([sys.executable, script, stack_file(tmp_path, 0)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.wait()


def test_stack_of_a_process_that_hangs(hung: subprocess.Popen[bytes], tmp_path: Path):
    (stack,) = ask_stacks(tmp_path, {0: hung.pid}, {0: "forward"})
    assert [frame.function for frame in stack.frames] == ["wait_for_ever", "main", "<module>"]
    lines = CODE.splitlines()
    assert [lines[frame.line - 1].strip() for frame in stack.frames] == ["time.sleep(600)", "wait_for_ever()", "main()"]
    assert stack.sentence == "rank 0 is in wait_for_ever (_target_entry.py:7), step forward"
    assert hung.poll() is None


def test_stopped_process_is_told_from_one_that_hangs(hung: subprocess.Popen[bytes], tmp_path: Path):
    os.kill(hung.pid, signal.SIGSTOP)
    (stack,) = ask_stacks(tmp_path, {0: hung.pid}, {})
    os.kill(hung.pid, signal.SIGCONT)
    assert stack.state == "stopped (SIGSTOP)"
    assert stack.frames == ()


def test_process_that_would_die_of_the_signal_is_not_asked(tmp_path: Path):
    process = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"], stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    (stack,) = ask_stacks(tmp_path, {0: process.pid}, {0: "load"})
    assert process.poll() is None
    process.kill()
    process.wait()
    assert stack.sentence == "rank 0 did not answer, step load"


def stack(rank: int, *frames: tuple[str, str]) -> RankStack:
    return RankStack(rank, "forward", frames=tuple(Frame(file, 1, function) for file, function in frames))


TORCH = "/x/lib/python3.11/site-packages/torch"
WAITING = (
    (f"{TORCH}/distributed/distributed_c10d.py", "all_reduce"), (f"{TORCH}/distributed/c10d_logger.py", "wrapper"),
    ("/opt/wizard/validation/passes.py", "reported_loss"),
)  # fmt: skip
BUSY = (("/x/lib/python3.11/json/decoder.py", "decode"), ("/opt/mine.py", "reward"))


def test_collective_and_place():
    assert stack(0, *WAITING).collective == "all_reduce"
    assert str(stack(0, *WAITING).place) == "reported_loss (passes.py:1)"
    assert stack(1, *BUSY).collective == ""
    assert stack(1, *BUSY).sentence == "rank 1 is in decode (decoder.py:1), called by reward (mine.py:1), step forward"


def test_ranks_outside_the_collective_are_behind():
    timed_out = Verdict("timed out", "forward", cause="No progress for 9 s.", behind=(0, 1, 2))
    told = with_stacks(timed_out, (stack(0, *WAITING), stack(1, *BUSY), stack(2, *WAITING)))
    assert told.behind == (1,)
    assert told.failure["frames"][-1] == "/x/lib/python3.11/json/decoder.py:decode"
    # All in one collective: none can be told to be late.
    assert with_stacks(timed_out, (stack(0, *WAITING), stack(1, *WAITING))).behind == (0, 1, 2)


@pytest.mark.parametrize("text", ["", "\x00", "Thread 0x1 (most recent call first):\n", '  File "a", line 1 in f\n'])
def test_anything_can_be_parsed(text: str):
    assert parse_stacks(text) == ()
