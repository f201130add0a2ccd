"""Asks a driver for the stacks of ranks on other machines. Runs in the wizard's process."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from wizard.validation.stacks import ASK_SECONDS, RECORD_SECONDS, STACKS_ANSWER, STACKS_REQUEST, RankStack


def ask_driver(folder: Path, steps: dict[int, str]) -> tuple[RankStack, ...]:
    """Return where every rank is; ranks that do not answer in time have no frames."""
    (folder / STACKS_REQUEST).touch()
    answer = folder / STACKS_ANSWER
    deadline = time.monotonic() + ASK_SECONDS + RECORD_SECONDS
    found: dict[int, RankStack] = {}
    while time.monotonic() < deadline and not found:
        time.sleep(0.1)
        if answer.exists():
            found = {stack.rank: stack for stack in msgspec.json.decode(answer.read_bytes(), type=list[RankStack])}
    return tuple(found.get(rank, RankStack(rank, step)) for rank, step in sorted(steps.items()))
