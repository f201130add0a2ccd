"""What a worker tells: one JSON object a line, the same for the panel and for scripts. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from wizard.scrub import hide_secrets

Kind = Literal["step_started", "step_finished", "metric", "memory", "log", "failure", "lost", "finished"]
KINDS = frozenset(("step_started", "step_finished", "metric", "memory", "log", "failure", "lost", "finished"))
MAX_LINE_BYTES = 256 << 10
_COUNT = re.compile(r"(?:^|_)(?:bytes|pid|parameters)$")
_FIGURE = re.compile(r"(?:^|_)(?:seconds|second|mfu)$")
_RESULT = re.compile(r"(?:^|_)(?:loss|norm)$")
"""Names of values that are whole numbers, finite numbers, and numbers that a run may well find to be NaN."""
_NOT_FINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True)
class Event:
    """One thing that happened on one rank.

    `data` by kind: step_finished `{seconds}`; metric `{name: value, …}` with units in the names; memory
    `{phase, peak_allocated_bytes, peak_reserved_bytes}` on a GPU, `{phase, resident_bytes}` on a CPU; log
    `{message}`; failure `{exception, message, frames, memory}`; lost `{cause}`, which a driver tells of a
    rank that cannot; finished `{}`.
    """

    kind: Kind
    rank: int
    time: float
    """Seconds since the epoch on the rank's machine."""
    step: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    node: str = ""
    """The machine the rank is on, as its launcher names it."""


def to_line(event: Event) -> str:
    """Return the event as one line of JSON, without secrets; numbers that JSON lacks become their names."""
    return json.dumps(_jsonable(dataclasses.asdict(event)), ensure_ascii=True, allow_nan=False) + "\n"


def _jsonable(value: Any) -> Any:
    if isinstance(value, str):
        return hide_secrets(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _jsonable(child) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value if isinstance(value, (int, float, bool, type(None))) else hide_secrets(str(value))


def parse_line(line: str) -> Event | None:
    """Read one line; None for anything that is not an event, so that a stray print cannot stop a run."""
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        data = json.loads(line)
        if not isinstance(data, dict) or data.get("kind") not in KINDS:
            return None
        rank, time, more = data["rank"], data["time"], data.get("data", {})
        step, node = data.get("step", ""), data.get("node", "")
        if type(rank) is not int or not isinstance(more, dict):
            return None
        if not isinstance(step, str) or not isinstance(node, str) or not _sound(data["kind"], more):
            return None
        return Event(data["kind"], rank, float(time), step, more, node)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _sound(kind: Kind, data: dict[str, Any]) -> bool:
    """Whether the data is what an event of this kind holds, so that whoever reads it need not doubt it."""
    if kind == "step_finished" and "seconds" not in data:
        return False
    if kind == "log" and "message" not in data:
        return False
    if kind == "memory":
        sizes = [value for name, value in data.items() if name != "phase"]
        return isinstance(data.get("phase"), str) and all(map(_is_count, sizes))
    if kind == "failure":
        return isinstance(data.get("frames", []), list) and isinstance(data.get("memory", {}), dict)
    return all(_fits(name, value) for name, value in data.items())


def _fits(name: str, value: Any) -> bool:
    if _COUNT.search(name):
        return _is_count(value)
    if _FIGURE.search(name) or _RESULT.search(name):
        finite = isinstance(value, float) and math.isfinite(value)
        return finite or _is_count(value) or (value in _NOT_FINITE and _RESULT.search(name) is not None)
    return True


def _is_count(value: Any) -> bool:
    return type(value) is int and abs(value) < 1 << 63
