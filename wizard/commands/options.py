"""Arguments and endings that several commands share."""

from __future__ import annotations

import argparse
import sys

from wizard.text import printable


def add_python(parser: argparse._ActionsContainer) -> None:
    """Declare `--python`."""
    parser.add_argument("--python", default="", metavar="PATH", help="interpreter that trains (default: this one)")


def add_model_access(parser: argparse.ArgumentParser) -> None:
    """Declare how a model may be reached."""
    add_python(parser)
    parser.add_argument("--revision", default="", metavar="COMMIT", help="commit of the hub's repository")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run the Python files that the model's config names"
    )


def verl_version(arguments: argparse.Namespace, *, ask_this_one: bool) -> str:
    """Return the verl release asked for, else the target interpreter's; empty where neither is known.

    Without `ask_this_one`, only an interpreter that was named is asked: that costs a process.
    """
    if arguments.verl_version or not (arguments.python or ask_this_one):
        return str(arguments.verl_version or "")
    from wizard.verl.schema import SchemaError
    from wizard.verl.target import verl_version_of

    try:
        return verl_version_of(arguments.python)
    except SchemaError as error:
        print(f"verl-wizard: {printable(str(error))}", file=sys.stderr)
        return ""


def reason(error: OSError) -> str:
    """Return what the system says, led by the file it is about."""
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what


def fail(message: str, code: int = 1) -> int:
    """Print a message on stderr and return the exit code."""
    lines = [printable(line) for line in message.split("\n")]
    print("verl-wizard: " + "\n".join(lines), file=sys.stderr)
    return code
