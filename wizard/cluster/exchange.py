"""Ranks tell each other values through the rendezvous' store: it works where collectives do not. Target interpreter."""

from __future__ import annotations

import json
import time
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

from wizard.cluster.report import WallClock

_ROUNDS = 16


class Exchange:
    """The store of a run, seen from one rank."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._store = PrefixStore("verl-wizard", store)

    def all(self, name: str, value: Any) -> list[Any]:
        """Give this rank's value and return all ranks', once they are there; as JSON keeps them."""
        self._store.set(f"{name}/{self.rank}", json.dumps(value))
        return [json.loads(self._store.get(f"{name}/{rank}")) for rank in range(self.world)]

    def clock_of(self, other: int, node: str) -> WallClock | None:
        """Compare rank `other`'s clock with rank 0's; both must call this, and rank 0 gets the answer.

        Cristian's method: rank 0 asks, the other answers with its time, and the answer belongs to the middle of the
        round trip, give or take half of it. The shortest of some trips counts.
        """
        trips: list[tuple[float, float]] = []
        for turn in range(_ROUNDS):
            ask, answer = f"ask/{other}/{turn}", f"answer/{other}/{turn}"
            if self.rank == other:
                self._store.get(ask)
                self._store.set(answer, repr(time.time()))
            else:
                wall, started = time.time(), time.perf_counter()
                self._store.set(ask, "")
                theirs = float(self._store.get(answer))
                trip = time.perf_counter() - started
                trips.append((trip / 2, theirs - (wall + trip / 2)))
        if not trips:
            return None
        error, ahead = min(trips)
        return WallClock(node, ahead, error)
