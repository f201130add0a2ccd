"""`verl-wizard capture -- bash run.sh`: checks what a launch script would start, without starting it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from wizard.commands import check
from wizard.commands.options import fail, verl_version
from wizard.text import printable
from wizard.verl.capture import CaptureError, capture
from wizard.verl.importer import import_argv
from wizard.verl.reader import ReadError
from wizard.verl.schema import SchemaError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = (
        "The script itself runs, in this folder: what it writes there with > or mkdir is written. python, torchrun, "
        "ray, srun, docker, rm and the like are replaced by stand-ins that record the call and succeed, so nothing of "
        "the training starts. Only the first trainer it would start is checked."
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --: the script's own command line")
    check.add_facts(parser)
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS", help="for the script to get there")


def run(arguments: argparse.Namespace) -> int:
    """Run the script with recording stand-ins, then check what verl would have been given."""
    try:
        calls = capture(arguments.command, arguments.time_limit)
    except (CaptureError, OSError) as error:
        return fail(str(error), 2)
    for call in calls.others:
        print(f"verl-wizard: not run: {printable(str(call))}", file=sys.stderr)
    if calls.training is None:
        return fail("the script started no verl trainer (python … verl.trainer… or ray job submit).", 2)
    try:
        version = verl_version(arguments, ask_this_one=False) or None
        found = import_argv(calls.training.argv, version, Path(calls.training.folder))
        facts = check.facts_of(arguments, found)
    except (ReadError, SchemaError, check.FactsError, OSError) as error:
        return fail(str(error), 2)
    arguments.fix = False
    return check.report(found, facts, arguments)
