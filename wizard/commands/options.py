"""Arguments and endings that several commands share."""

from __future__ import annotations

import argparse
import sys

from wizard.text import printable


def add_python(parser: argparse.ArgumentParser) -> None:
    """Declare `--python`."""
    parser.add_argument("--python", default="", metavar="PATH", help="interpreter that trains (default: this one)")


def add_model_access(parser: argparse.ArgumentParser) -> None:
    """Declare how a model may be reached."""
    add_python(parser)
    parser.add_argument("--revision", default="", metavar="COMMIT", help="commit of the hub's repository")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run the Python files that the model's config names"
    )


def fail(message: str, code: int = 1) -> int:
    """Print a message on stderr and return the exit code."""
    lines = [printable(line) for line in message.split("\n")]
    print("verl-wizard: " + "\n".join(lines), file=sys.stderr)
    return code
