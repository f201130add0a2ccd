"""`verl-wizard inspect MODEL`."""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from wizard.commands.options import add_model_access, fail
from wizard.facts import Architecture
from wizard.model.describe import facts_of
from wizard.model.errors import ModelError
from wizard.model.resolve import resolve_model
from wizard.text import count, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="local folder, Hugging Face id, preset, or `tiny`")
    parser.add_argument("--role", choices=("actor", "critic"), default="actor", help="critic: with a value head")
    add_model_access(parser)
    parser.add_argument("--json", action="store_true", help="the whole architecture as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the architecture; exit 1 when the model cannot be used."""
    try:
        found = resolve_model(
            arguments.model,
            python=arguments.python,
            revision=arguments.revision,
            trust_remote_code=arguments.trust_remote_code,
            role=arguments.role,
        )
    except ModelError as error:
        return fail(str(error))
    if arguments.json:
        json.dump(msgspec.to_builtins(found), sys.stdout)
        print()
    else:
        print(architecture_text(arguments.model, found))
    return 0


def architecture_text(model: str, found: Architecture) -> str:
    """Return what people want to know about a model, as lines."""
    facts = facts_of(found)
    width = max(len(name) for name, _ in facts)
    lines = [model, *(f"  {name:{width}}  {value}" for name, value in facts), "", "layer classes"]
    rows = [
        (
            entry.name,
            f"{entry.count}",
            f"{entry.parameters / found.parameters:.1%}",
            count(entry.largest_parameters),
            entry.kind,
            "model" if entry.in_no_split_modules else "",
            "structure" if entry.detected else "",
        )
        for entry in found.layer_classes
    ]
    return "\n".join([*lines, table(("class", "count", "share", "unit", "kind", "named by", "found by"), rows)])
