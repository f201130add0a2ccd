"""A rank's pen: writes its events to its own file. Target interpreter, standard library only."""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wizard.validation.events import Event, Kind, to_line
from wizard.validation.memory_state import memory_state
from wizard.validation.rank_environment import NODE_VARIABLE

HEARTBEAT_SECONDS = 1.0


def event_file(folder: Path, rank: int) -> Path:
    """Return where a rank writes its events."""
    return folder / f"rank{rank}.jsonl"


def heartbeat_file(folder: Path, rank: int) -> Path:
    """Return the file whose change time says that a rank's interpreter still runs."""
    return folder / f"rank{rank}.alive"


class Reporter:
    """Writes events of one rank, each flushed at once; safe to use from several threads."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.step = ""
        self._node = os.environ.get(NODE_VARIABLE) or socket.gethostname()
        self._stream = event_file(folder, rank).open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()
        self._alive = heartbeat_file(folder, rank)
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            try:
                self._alive.write_text(str(os.getpid()))
            except OSError:
                return
            time.sleep(HEARTBEAT_SECONDS)

    def tell(self, kind: Kind, **data: Any) -> None:
        """Write one event of the present step."""
        line = to_line(Event(kind, self.rank, time.time(), self.step, data, self._node))
        with self._lock:
            self._stream.write(line)

    def metric(self, **values: Any) -> None:
        """Write measured values."""
        self.tell("metric", **values)

    def log(self, message: str) -> None:
        """Write a sentence for people."""
        self.tell("log", message=message)

    @contextmanager
    def running(self, step: str) -> Iterator[None]:
        """Tell that a step starts, how long it took, or how it failed.

        Raises:
            Exception: whatever failed, after it was told.
        """
        self.step = step
        self.tell("step_started")
        started = time.perf_counter()
        try:
            yield
        except BaseException as error:
            self.failed(error)
            raise
        self.tell("step_finished", seconds=time.perf_counter() - started)

    def failed(self, error: BaseException) -> None:
        """Tell a failure with its type, text, stack and the memory at that moment."""
        frames = [f"{frame.filename}:{frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
        self.tell(
            "failure",
            exception=type(error).__name__,
            message=str(error)[:4000] or type(error).__name__,
            frames=frames[-60:],
            memory=memory_state(),
        )
