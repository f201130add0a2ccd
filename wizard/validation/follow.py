"""Follows a validation that another process runs: read-only, from its folder. Its owner stays its owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from wizard.validation.events import Event
from wizard.validation.run_folder import ask_to_end, goes_on, read_result, read_spec_of
from wizard.validation.signs import EventReader
from wizard.validation.verdict import Verdict

POLL_SECONDS = 0.2
OWNERLESS = Verdict(
    "lost", cause="the program that ran it ended without a verdict, and its processes with it (killed, or power lost)"
)


class FollowedRun:
    """A run of somebody else, with the interface of one's own: spec, folder, events, verdict, cancel."""

    def __init__(self, folder: Path) -> None:
        """Begin at the run's first event.

        Raises:
            NoRun: the folder holds no validation.
            OSError: it cannot be read.
        """
        self.folder = folder
        self.spec = read_spec_of(folder)
        self.verdict: Verdict | None = None

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events so far and then as they come, until the run has its verdict.

        Raises:
            NoRun: the result is not what a validation writes.
            OSError: it cannot be read.
        """
        reader = EventReader(self.folder, range(self.spec.world_size))
        while self.verdict is None:
            # Looked at first: what was written before the owner ended is then read below.
            going_on = goes_on(self.folder)
            for event in reader.read():
                yield event
            if going_on:
                await asyncio.sleep(POLL_SECONDS)
            elif reader.caught_up:
                self.verdict = read_result(self.folder) or OWNERLESS

    async def cancel(self) -> None:
        """Ask the run's owner to end it; `events` then ends with its verdict.

        Raises:
            OSError: the run's folder is gone.
        """
        ask_to_end(self.folder)
