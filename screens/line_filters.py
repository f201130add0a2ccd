"""What is done to every drawn line, whoever drew it: no control characters, and ASCII where the terminal needs it."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from wizard.text import printable

SIGNS = {
    **dict.fromkeys("·•…", "."),
    **dict.fromkeys("▼▾↓", "v"),
    **dict.fromkeys("▲▴↑", "^"),
    **dict.fromkeys("▶›→", ">"),
    **dict.fromkeys("◀‹←", "<"),
    **dict.fromkeys("–—−", "-"),
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("‘’", "'"),
    "≤": "<",
    "≥": ">",
    "×": "x",
    "✓": "+",
}
BOX, BLOCKS = range(0x2500, 0x2580), range(0x2580, 0x25A0)
RISING = " .:-=+*#@"


class PrintableFilter(LineFilter):
    """Keeps control characters of names, paths and pasted text from steering the terminal."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments without control characters."""
        return [
            segment
            if segment.text.isprintable() or segment.control
            else Segment(printable(segment.text), segment.style, segment.control)
            for segment in segments
        ]


class JoinFilter(LineFilter):
    """Joins what looks the same: a terminal is sent the colours of every segment."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments, neighbours of one style in one."""
        return list(Segment.simplify(segment for segment in segments if segment.text))


class AsciiFilter(LineFilter):
    """Replaces every character by an ASCII one of the same width."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments in ASCII."""
        return [
            segment if segment.text.isascii() else Segment(ascii_text(segment.text), segment.style, segment.control)
            for segment in segments
        ]


def ascii_text(text: str) -> str:
    """Return text in ASCII, as wide as before."""
    return "".join(character if character.isascii() else _sign(character) for character in text)


def _sign(character: str) -> str:
    if character in SIGNS:
        return SIGNS[character]
    code = ord(character)
    if code in BOX:
        name = unicodedata.name(character, "")
        horizontal = "HORIZONTAL" in name and "VERTICAL" not in name
        return "-" if horizontal else "|" if name.endswith("VERTICAL") else "+"
    if code in BLOCKS:
        # Lower blocks of a sparkline rise from one to eight eighths.
        return RISING[min(8, code - 0x2580)] if code <= 0x2588 else "|"
    letter = unicodedata.normalize("NFKD", character)[:1]
    width = cell_len(character)
    return letter if letter.isascii() and width == 1 else "?" * width
