"""`verl-wizard explain ID`."""

from __future__ import annotations

import argparse
import textwrap

from wizard.commands.options import fail
from wizard.rules import ALL_RULES, NoSuchRule, RuleInfo, explain
from wizard.rules.remedies import EXAMPLES
from wizard.text import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("id", nargs="?", metavar="ID", help="id of a rule, as in `reduce-dtype`; without it, all ids")


def run(arguments: argparse.Namespace) -> int:
    """Print one rule, or the list of all."""
    if arguments.id is None:
        rows = [(info.id, info.severity.value, info.stage.value, info.title) for info in ALL_RULES]
        print(table(("id", "severity", "when", "rule"), rows, indent=""))
        return 0
    try:
        print(rule_text(explain(arguments.id)))
    except NoSuchRule as error:
        return fail(str(error.args[0]), 2)
    return 0


def rule_text(info: RuleInfo) -> str:
    """Return everything known of a rule."""
    lines = [
        f"{info.id}: {info.title}",
        f"severity: {info.severity.value}",
        f"when verl shows it: {info.stage.value}",
        *(f"field: {field}" for field in info.fields),
        "",
        *textwrap.wrap(info.explanation, 100),
        "",
        *([f"fix, for example: {EXAMPLES[info.id]}"] if info.id in EXAMPLES else []),
        f"source: {info.source}",
    ]
    return "\n".join(lines)
