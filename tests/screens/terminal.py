"""The real program in a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

DEADLINE_SECONDS = 60
COLOUR_SETTINGS = ("COLORTERM", "NO_COLOR", "TEXTUAL_COLOR_SYSTEM", "TEXTUAL_THEME", "TERM_PROGRAM")
"""What of the person's own terminal would decide on colours here."""


class Terminal:
    """`python -m wizard` in a pseudo-terminal of 80×24."""

    def __init__(self, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            for name in COLOUR_SETTINGS:
                os.environ.pop(name, None)
            os.environ.update({"TERM": "xterm-256color", **(environment or {})})
            os.execv(sys.executable, [sys.executable, "-m", "wizard", *arguments])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.seen = b""

    def read(self, seconds: float) -> bytes:
        """Read what comes within a time; empty at the end of the program."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return b""
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return b""
        self.seen += data
        return data

    def until(self, text: bytes) -> None:
        """Read until a text was painted."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} was not painted: {self.seen[-2000:]!r}"
            self.read(0.5)

    def send(self, keys: bytes) -> None:
        """Press keys."""
        self.seen = b""
        os.write(self.fd, keys)

    def end(self) -> int:
        """Wait for the program's end and return its exit code, negative for a signal."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, "the program did not end"
            self.read(0.1)

    def close(self) -> None:
        """End the program, if it still runs."""
        if psutil.pid_exists(self.pid):
            psutil.Process(self.pid).kill()
        os.close(self.fd)
