"""Reads a training log of any size as lines with their process: colours, prefixes and progress bars removed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 16 << 10
"""What a line may hold; the rest of a longer one (a dumped tensor, a prompt) is left out."""

_BREAK = re.compile(rb"\r\n|\n|\r")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_TIME = re.compile(r"^\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\]?:? ?")
_RAY = re.compile(r"^\((?P<source>[^()]*?\bpid=\d+[^()]*|raylet|autoscaler[^()]*|head[^()]*)\) ?")
_RANK = re.compile(r"^\[(?:default|rank)(?P<rank>\d+)\]:? ?")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")


@dataclass(frozen=True)
class LogLine:
    """One line, from 1. `source` tells processes apart: Ray's prefix or torchrun's rank, empty for the driver."""

    number: int
    source: str
    rank: int | None
    text: str


def read_lines(stream: BinaryIO) -> Iterator[LogLine]:
    """Yield the lines of a log; memory stays flat whatever the size and the length of a line."""
    for number, raw in enumerate(_raw_lines(stream), 1):
        yield parse_line(number, raw.decode("utf-8", "replace"))


def parse_line(number: int, text: str) -> LogLine:
    """Take a raw line apart into process and text."""
    text = _CONTROL.sub("", _ESCAPE.sub("", text)).rstrip()
    text = _TIME.sub("", text)
    source, rank = "", None
    found = _RAY.match(text)
    if found:
        source, text = found["source"], _REPEATED.sub("", text[found.end() :])
    found = _RANK.match(text)
    if found:
        rank, text = int(found["rank"]), text[found.end() :]
        source = source or f"rank {rank}"
    return LogLine(number, source, rank, text)


def _raw_lines(stream: BinaryIO) -> Iterator[bytes]:
    rest = b""
    for chunk in iter(lambda: stream.read(CHUNK_BYTES), b""):
        lines = _BREAK.split(rest + chunk)
        # A pair \r\n may be cut between two chunks: the \r waits for its other half.
        rest = lines.pop()
        if chunk.endswith(b"\r") and not rest and lines:
            rest = lines.pop() + b"\r"
        yield from _short(lines)
        if len(rest) > MAX_LINE_BYTES:
            rest = rest[:MAX_LINE_BYTES]
    if rest:
        yield from _short(_BREAK.split(rest.rstrip(b"\r")))


def _short(lines: Iterable[bytes]) -> Iterator[bytes]:
    return (line[:MAX_LINE_BYTES] for line in lines)
