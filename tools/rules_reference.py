"""Writes docs/rules.md: every rule with its severity, when verl shows it, its keys and its source.

python tools/rules_reference.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from wizard.rules import ALL_RULES, RuleInfo
from wizard.rules.remedies import EXAMPLES

PAGE = Path(__file__).parents[1] / "docs" / "rules.md"
HEAD = """# Rules

Written by `tools/rules_reference.py`; do not edit. `verl-wizard explain ID` prints one of them.

Severities: **error** verl stops, or trains on something wrong; **warning** it runs, but costs memory, time or
quality; **note** worth knowing. A rule whose facts are not known says nothing.
"""
WHEN = {
    "environment": "before verl starts",
    "composition": "while Hydra composes",
    "driver": "verl's first check, before Ray starts",
    "trainer": "when the trainer is built",
    "workers": "when workers start",
    "rollout": "when the rollout server starts",
    "first-step": "at the first step",
    "silent": "never: verl says nothing",
}


def subject(info: RuleInfo) -> str:
    """Return the heading a rule stands under: its module's."""
    if info.id.startswith("placement-"):
        return "placement"
    return info.check.__module__.rpartition(".")[2]


def page() -> str:
    """Return the whole reference page."""
    return "\n".join([HEAD, *_table(), *_sections()])


def _table() -> Iterator[str]:
    yield "| id | severity | when | rule |"
    yield "|---|---|---|---|"
    for info in _sorted():
        yield f"| [{info.id}](#{info.id}) | {info.severity.value} | {WHEN[info.stage.value]} | {info.title} |"
    yield ""


def _sections() -> Iterator[str]:
    before = ""
    for info in _sorted():
        if subject(info) != before:
            before = subject(info)
            yield f"## {before.capitalize()}\n"
        yield f"### {info.id}\n"
        yield f"**{info.title}**. {info.severity.value.capitalize()}; {WHEN[info.stage.value]}.\n"
        yield f"{info.explanation}\n"
        if info.fields:
            yield f"Keys: {', '.join(f'`{field}`' for field in info.fields)}\n"
        if info.id in EXAMPLES:
            yield f"Fix, for example: {EXAMPLES[info.id]}\n"
        yield f"Source: {info.source}\n"


def _sorted() -> list[RuleInfo]:
    return sorted(ALL_RULES, key=lambda info: (subject(info), info.id))


def main() -> int:
    """Write the page, or with --check tell by the exit code whether it is current."""
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
