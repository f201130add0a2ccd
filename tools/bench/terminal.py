"""A program in a real pseudo-terminal: what it sends, what its screen then shows, and how long after a key."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil
import pyte

DEADLINE_SECONDS = 60.0
SYNCHRONIZED_ASKED, SYNCHRONIZED_KNOWN = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
"""Modern terminals know synchronized output (mode 2026); a program that learns it sends 16 bytes more a frame."""
COLUMNS_AND_LINES = (80, 24)


class TerminalError(RuntimeError):
    """The screen did not become what was waited for."""


class Terminal:
    """One program, ended with the block."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        size: tuple[int, int] = COLUMNS_AND_LINES,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        columns, lines = size
        self.folder = folder
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.received_bytes = 0
        self.received_at = self.started = time.perf_counter()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            os.execvpe(argv[0], list(argv), {**os.environ, "TERM": "xterm-256color", **(environment or {})})
        self.process = psutil.Process(self.pid)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # SIGTERM: a program that has processes of its own ends them.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            self.read(0.05)
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
        os.close(self._fd)

    def read(self, seconds: float) -> int:
        """Take what comes within a time; returns its bytes."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return 0
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            return 0
        self.received_at = time.perf_counter()
        self.received_bytes += len(data)
        self._stream.feed(data)
        if SYNCHRONIZED_ASKED in data:
            os.write(self._fd, SYNCHRONIZED_KNOWN)
        return len(data)

    def listen(self, seconds: float) -> int:
        """Take all that comes during a time; returns its bytes."""
        before, end = self.received_bytes, time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)
        return self.received_bytes - before

    def quiet(self, seconds: float) -> None:
        """Wait until nothing has come for a time.

        Raises:
            TerminalError: it never stops.
        """
        end = time.monotonic() + DEADLINE_SECONDS
        while self.listen(seconds):
            if time.monotonic() > end:
                raise TerminalError(f"the program does not stop sending:\n{self.text}")

    @property
    def text(self) -> str:
        """What the screen shows."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def send(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._fd, keys)

    def until(self, true: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> float:
        """Read until a condition of the screen holds; returns when what made it so came, in `time.perf_counter`.

        Raises:
            TerminalError: it did not come.
        """
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                raise TerminalError(f"{what} did not come within {seconds:g} s:\n{self.text}")
            self.read(0.1)
        return self.received_at

    def until_text(self, text: str, line: int | None = None, seconds: float = DEADLINE_SECONDS) -> float:
        """Read until a text is on the screen, or on one of its lines, counted from 0."""
        return self.until(lambda: text in (self.text if line is None else self.line(line)), repr(text), seconds)

    def line(self, number: int) -> str:
        """What one line shows, counted from 0."""
        row = self.screen.buffer[number]
        return "".join(row[column].data for column in range(self.screen.columns))

    def press(self, keys: bytes, text: str, line: int | None = None) -> float:
        """Press keys and return the seconds until the text that they bring is painted."""
        pressed = time.perf_counter()
        self.send(keys)
        return self.until_text(text, line) - pressed
