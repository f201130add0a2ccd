"""What a run's ranks leave in its folder, read while they go on: their events, and their signs of life."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from wizard.validation.events import MAX_LINE_BYTES, Event, parse_line
from wizard.validation.reporter import event_file, heartbeat_file

READ_BYTES = 64 << 10
"""Read of one rank's file at a time, so that a flood of events neither holds up the display nor fills the memory."""


class EventReader:
    """Reads what was added to the event files of a run since the last time."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._files = {rank: event_file(folder, rank) for rank in ranks}
        self._offsets = dict.fromkeys(self._files, 0)
        self._rests = dict.fromkeys(self._files, b"")
        self.caught_up = False
        """Whether the last read came to the end of every file."""

    def read(self) -> list[Event]:
        """Return the new events in the order of their times; lines that are no events are passed over."""
        found: list[Event] = []
        self.caught_up = True
        for rank, file in self._files.items():
            try:
                with file.open("rb") as stream:
                    stream.seek(self._offsets[rank])
                    data = stream.read(READ_BYTES)
            except OSError:
                continue
            self._offsets[rank] += len(data)
            self.caught_up = self.caught_up and len(data) < READ_BYTES
            *lines, rest = (self._rests[rank] + data).split(b"\n")
            # No event is so long: the rest of such a line is garbage too, and must not be kept while it grows.
            self._rests[rank] = rest[: MAX_LINE_BYTES + 1]
            events = (parse_line(line.decode("utf-8", "replace")) for line in lines)
            found += [event for event in events if event is not None and event.rank == rank]
        return sorted(found, key=lambda event: event.time)


class Heartbeats:
    """How long each rank has given no sign of life.

    A change of the file's time is the sign, whatever the time says: a wall clock that is set forward or back makes
    no living rank look dead, and no dead one alive.
    """

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._files = {rank: heartbeat_file(folder, rank) for rank in ranks}
        self._seen: dict[int, tuple[int, float]] = {}

    def silent_seconds(self, now: float) -> dict[int, float]:
        """Return the seconds since each rank's last sign; `now` is a clock that only goes forward."""
        for rank, file in self._files.items():
            try:
                stamp = file.stat().st_mtime_ns
            except OSError:
                continue
            if rank not in self._seen or self._seen[rank][0] != stamp:
                self._seen[rank] = (stamp, now)
        return {rank: now - since for rank, (_, since) in self._seen.items()}
