"""Walking the repeated blocks without replaying each one."""

from __future__ import annotations

from collections.abc import Iterator

EDGE = 2
"""Blocks replayed one by one at each end of a run of equal blocks; the state between them changes linearly, so
its extremes are at the ends."""


def steps(repeat: int) -> Iterator[int]:
    """Yield how many equal blocks each replayed block stands for; they sum to `repeat`.

    A value k > 1 means: replay one block's events once, then book k − 1 further blocks at once.
    """
    if repeat <= 2 * EDGE:
        yield from (1,) * repeat
        return
    yield from (1,) * EDGE
    yield repeat - 2 * EDGE
    yield from (1,) * EDGE
