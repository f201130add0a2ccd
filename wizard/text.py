"""Numbers and tables as people read them on a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

GIB = 1 << 30
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def count(number: float) -> str:
    """Return `7.6B`, `494M`, `46.3k`."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{unit}"
    return f"{number:g}"


def gib(size_bytes: float) -> str:
    """Return bytes as `17.8 GiB`; small ones as MiB."""
    if abs(size_bytes) < GIB / 10:
        return f"{size_bytes / (1 << 20):.1f} MiB"
    return f"{size_bytes / GIB:.1f} GiB"


def printable(text: str) -> str:
    """Return text from outside without control characters, so that it cannot steer the terminal."""
    return _UNPRINTABLE.sub("�", text)


def printable_lines(text: str) -> str:
    """Return text of several lines with every control character but the line ends made visible."""
    return "\n".join(printable(line) for line in text.split("\n"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Return aligned columns, numbers to the right, without trailing blanks."""
    cells = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(head))]
    right = [
        bool(rows) and all(row[index][:1].isdigit() or row[index][:1] in "-" for row in cells[1:])
        for index in range(len(head))
    ]
    return "\n".join(
        indent
        + "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    )
