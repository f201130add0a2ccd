"""Writes the table of known causes into docs/debug.md, between its two markers.

python tools/causes_reference.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from wizard.diagnosis.causes import CAUSES

PAGE = Path(__file__).parents[1] / "docs" / "debug.md"
START = "<!-- causes: written by tools/causes_reference.py -->\n"
END = "<!-- /causes -->"


def page(text: str) -> str:
    """Return the page with the table as it is now."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return "".join((before, START, *_table(), END, after))


def _table() -> Iterator[str]:
    yield "| Cause | What happened | Rule | Who says it |\n|---|---|---|---|\n"
    for cause in sorted(CAUSES, key=lambda cause: cause.id):
        rule = f"[{cause.rule}](rules.md#{cause.rule})" if cause.rule else ""
        yield f"| {cause.id} | {cause.title} | {rule} | {cause.source} |\n"


def main() -> int:
    """Write the page, or with --check tell by the exit code whether it is current."""
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return 0 if page(text) == text else 1
    PAGE.write_text(page(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
