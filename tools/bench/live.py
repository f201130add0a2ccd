"""Bytes on the wire and the answer to keys: idle, during a validation of eight ranks, and in a flood."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.bench.feeder import stand_in_interpreter
from tools.bench.results import Result, Spread, spread_note
from tools.bench.terminal import Terminal, TerminalError
from tools.bench.wizard_terminal import BACKSPACE, SHIFT_TAB, STATE_FOLDER, STEPS, TAB, generate, go_to, open_wizard

RANKS = 8
EVENTS_PER_SECOND = 50.0
BUDGETS_BYTES_PER_SECOND = {(80, 24): 6_000.0, (160, 50): 15_000.0}
KEY_LIMIT_MS, FLOOD_KEY_LIMIT_MS = 50.0, 100.0
FLOOD_EVENTS_PER_SECOND, FLOOD_LOG_BYTES_PER_SECOND = 1_000.0, 10e6
FLOOD_GROWTH_LIMIT_MB = 20.0
SETTLE_SECONDS = 4.0
"""From the start of a run until the screen has all its lines, and the reader its buffers."""
FIND_FIELD_SECONDS = 4.0
CONTROLS_LINE = 2
SEVEN, EMPTY = "ranks 7 ", "ranks auto"
"""What the field of ranks shows with a 7 in it, and with nothing."""
MB = 1e6


@contextmanager
def validating(
    size: tuple[int, int], seconds: float, events_per_second: float, log_bytes_per_second: float = 0.0
) -> Iterator[Terminal]:
    """Give a terminal in which a validation of eight ranks has just started, and goes on for so long."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder)
        python = stand_in_interpreter(folder, seconds, events_per_second, log_bytes_per_second)
        with open_wizard(folder, size, python) as terminal:
            go_to(terminal, STEPS)
            terminal.quiet(1.0)
            terminal.send(TAB)
            terminal.press(str(RANKS).encode(), f"ranks {RANKS}", CONTROLS_LINE)
            terminal.send(b"\r")
            terminal.until_text(f"Running {RANKS} ranks")
            yield terminal


def to_ranks_field(terminal: Terminal) -> None:
    """Put the focus into the field of ranks while a run goes on.

    Raises:
        TerminalError: no way leads there.
    """
    for _ in range(20):
        terminal.send(SHIFT_TAB + b"7")
        # What was typed may show late, with the focus further on by then: only what can be taken back is in the field.
        with contextlib.suppress(TerminalError):
            terminal.until_text(SEVEN, CONTROLS_LINE, 0.5)
            terminal.send(BACKSPACE)
            terminal.until_text(EMPTY, CONTROLS_LINE, 2.0)
            terminal.press(b"7", SEVEN, CONTROLS_LINE)
            return
    raise TerminalError(f"the field of ranks cannot be reached:\n{terminal.text}")


def key_seconds(terminal: Terminal, seconds: float) -> list[float]:
    """Type into the field of ranks for a time, at times of no rhythm; return how long each key took to be painted."""
    pauses, taken = random.Random(0), []
    end = time.monotonic() + seconds
    shown = {b"7": SEVEN, BACKSPACE: EMPTY}
    while time.monotonic() < end:
        for key in (BACKSPACE, b"7"):
            terminal.listen(pauses.uniform(0.05, 0.35))
            taken.append(terminal.press(key, shown[key], CONTROLS_LINE))
    return taken


def idle(seconds: float = 5.0) -> list[Result]:
    """Measure what each step sends while nothing happens."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        generate(Path(name))
        with open_wizard(Path(name)) as terminal:
            for step in range(1, STEPS + 1):
                go_to(terminal, step)
                terminal.quiet(3.0)
                rate = terminal.listen(seconds) / seconds
                title = terminal.line(0).partition("[")[0].strip()
                found.append(Result("idle", f"step {title}", rate, "B/s", 0.0))
    return found


def live(seconds: float = 15.0) -> list[Result]:
    """Measure bytes and keys during a validation, at both sizes."""
    found = []
    for size, budget in BUDGETS_BYTES_PER_SECOND.items():
        columns, lines = size
        where = f"{RANKS} ranks at {EVENTS_PER_SECOND:.0f} events/s, {columns}×{lines}"
        with validating(size, SETTLE_SECONDS + 2 * seconds + 10, EVENTS_PER_SECOND) as terminal:
            terminal.listen(SETTLE_SECONDS)
            rate = terminal.listen(seconds) / seconds
            to_ranks_field(terminal)
            keys = Spread([taken * 1e3 for taken in key_seconds(terminal, seconds)])
        found.append(Result("live", where, rate, "B/s", budget))
        found.append(_key_result("live", f"key to paint p95, {columns}×{lines}", keys, KEY_LIMIT_MS))
    return found


def _key_result(group: str, name: str, keys: Spread, limit_ms: float | None) -> Result:
    return Result(group, name, keys.p95, "ms", limit_ms, samples=len(keys.values), note=spread_note(keys))


def flood(seconds: float, settle_seconds: float = SETTLE_SECONDS) -> list[Result]:
    """Measure keys and memory while ranks tell a thousand events a second and print 10 MB/s."""
    lasting = settle_seconds + FIND_FIELD_SECONDS + seconds
    with validating((80, 24), lasting, FLOOD_EVENTS_PER_SECOND, FLOOD_LOG_BYTES_PER_SECOND) as terminal:
        terminal.listen(settle_seconds)
        to_ranks_field(terminal)
        before = terminal.process.memory_info().rss
        resident, keys, end = [], [], time.monotonic() + seconds
        while time.monotonic() < end:
            keys += key_seconds(terminal, min(5.0, end - time.monotonic()))
            resident.append(terminal.process.memory_info().rss)
        # The verdict comes after the last event: nothing of the flood was left unread.
        terminal.until_text("Passed: every step ran on every rank.")
        told = told_and_printed(terminal.folder, lasting)
    spread = Spread([taken * 1e3 for taken in keys])
    return [
        _key_result("flood", f"key to paint p95 over {seconds:.0f} s, {told}", spread, FLOOD_KEY_LIMIT_MS),
        Result(
            "flood",
            f"growth of resident memory over {seconds:.0f} s",
            (max(resident) - before) / MB,
            "MB",
            FLOOD_GROWTH_LIMIT_MB,
            note=f"from {before / MB:.0f} MB; at half time {resident[len(resident) // 2] / MB:.0f} MB",
        ),
    ]


def told_and_printed(folder: Path, seconds: float) -> str:
    """Return the rates that a run's files show: a busy machine may keep the feeder from its own."""
    (run,) = (folder / STATE_FOLDER).glob("verl-wizard/runs/*")
    with (run / "rank0.jsonl").open("rb") as stream:
        events = sum(1 for _ in stream)
    printed_bytes = (run / "log.txt").stat().st_size
    return f"{events / seconds:,.0f} events/s a rank, {printed_bytes / seconds / MB:.1f} MB/s of log"
