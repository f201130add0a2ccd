"""Keeps a run's processes together: starts torchrun and ends it, whatever happens to the wizard.

Runs in the target interpreter in a session of its own, standard library only. Its stdin is a pipe from the wizard:
when the wizard closes it, or dies in any way, the pipe ends and so does the run. Should this process itself be
killed, the kernel kills torchrun, and each worker dies with its torchrun (`PR_SET_PDEATHSIG`).
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

GRACE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
CANCELLED_CODE = 130


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies; ends at once if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def killed_by(exit_code: int) -> str:
    """Say what ended a process whose exit code is a signal's number, negated."""
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    more = " (out of memory, or killed by hand)" if name == "SIGKILL" else ""
    return f"its process was killed by {name}{more}"


def descendants(root: int) -> list[int]:
    """Return the ids of all processes below `root`, from /proc; empty where there is none."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _signal_all(number: int) -> list[int]:
    below = descendants(os.getpid())
    for process in below:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
    return below


def end_all(grace_seconds: float = GRACE_SECONDS) -> None:
    """End every process below this one: SIGTERM, then SIGKILL for those that ignore it."""
    _signal_all(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline:
        _reap()
        if not descendants(os.getpid()):
            return
        time.sleep(0.05)
    while _signal_all(signal.SIGKILL):
        _reap()
        time.sleep(0.02)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def main(argv: list[str]) -> int:
    """Run `argv` until it ends or the wizard lets go; returns its exit code, 130 when it was ended."""
    # Orphaned workers become ours, so that none is out of reach.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)

    def ended(number: int, frame: FrameType | None) -> None:
        os.write(wake_write, b"c" if number == signal.SIGCHLD else b"t")

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, ended)
    me = os.getpid()
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=lambda: die_with_parent(me))
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ, "wizard")
    selector.register(wake_read, selectors.EVENT_READ, "signal")
    while True:
        for key, _ in selector.select():
            told = os.read(key.fd if isinstance(key.fd, int) else 0, 64)
            if (key.data == "wizard" and not told) or (b"t" in told and key.data == "signal"):
                end_all()
                return CANCELLED_CODE
        code = child.poll()
        if code is not None:
            end_all()
            return code if code >= 0 else 128 - code
