"""`verl-wizard keys`: every key of the screens, by the id that gives it another one."""

from __future__ import annotations

import argparse
import sys

from wizard.text import printable, table

HOW = "Other keys are set by lines `id: key[,key]` in {path}, such as `next: f10,ctrl+n`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print all keys as they are now; exit 1 when the file has an entry that cannot be taken."""
    from screens.keymap import keys_file, owners, read_keys

    found = read_keys()
    rows = []
    for owner in owners():
        for binding in owner.bindings:
            name, about = str(binding.id), binding.tooltip or binding.description
            rows.append((name, found.keys.get(name, binding.key), owner.where, about))
    print(table(("id", "key", "where", "what it does"), rows, indent=""))
    print(HOW.format(path=printable(str(keys_file()))), file=sys.stderr)
    for problem in found.problems:
        print(f"verl-wizard: {problem}", file=sys.stderr)
    return 1 if found.problems else 0
