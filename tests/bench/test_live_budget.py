"""The budgets that a busy machine cannot bend: bytes on a real terminal, memory in a flood. Times are `make bench`'s."""

from __future__ import annotations

import pytest

from tools.bench.live import BUDGETS_BYTES_PER_SECOND, EVENTS_PER_SECOND, FLOOD_GROWTH_LIMIT_MB, flood, validating

SIZE = (80, 24)
SECONDS = 4.0
STUCK_MS = 3000.0
"""A key takes milliseconds; on a machine with other work, still not seconds unless the events hold it up."""


def test_a_live_validation_keeps_the_byte_budget() -> None:
    with validating(SIZE, SECONDS + 6, EVENTS_PER_SECOND) as terminal:
        terminal.listen(2)
        rate = terminal.listen(SECONDS) / SECONDS
        shown = terminal.text
    assert rate <= BUDGETS_BYTES_PER_SECOND[SIZE]
    # It does draw: the values that ranks tell are there, and change.
    assert "gradient norm" in shown
    assert rate > 500


@pytest.mark.slow
def test_a_flood_of_events_and_log_keeps_keys_and_memory() -> None:
    keys, growth = flood(4, settle_seconds=2)
    assert keys.value < STUCK_MS, keys
    assert growth.value < FLOOD_GROWTH_LIMIT_MB, growth
