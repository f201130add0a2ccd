"""`verl-wizard debug [CONFIG|RUN-FOLDER|LOG]`: the first cause of a failure, and the change that removes it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import msgspec

from wizard.commands.options import fail, reason
from wizard.commands.run_options import add_run_options, run_options_error
from wizard.debugging.text import diagnosis_text
from wizard.diagnosis.of_path import diagnose_path, is_run_folder
from wizard.plan import Plan, PlanError
from wizard.plan_file import FILE_NAME as PLAN_NAME
from wizard.plan_file import load_plan
from wizard.scrub import scrub
from wizard.validation.run_folder import NoRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "target",
        nargs="?",
        type=Path,
        metavar="CONFIG|RUN-FOLDER|LOG",
        help=f"configuration to climb with (default: {PLAN_NAME} here), a validation's run folder, or a training log",
    )
    parser.add_argument("--json", action="store_true", help="JSON: the diagnosis, or one object a line of a climb")
    reading = parser.add_argument_group("a run folder or a log")
    reading.add_argument(
        "--plan", type=Path, metavar="PLAN", help="the Plan that ran: fixes then start from its values"
    )
    climbing = parser.add_argument_group("a configuration")
    climbing.add_argument("--fix", action="store_true", help="apply the first fix and climb again, until it passes")
    climbing.add_argument("--no-checks", action="store_true", help="run it even when verl would refuse it")
    climbing.add_argument("--out", type=Path, metavar="DIR", help="folder for the files of the Plan that passed")
    climbing.add_argument("--report", type=Path, metavar="FILE", help="write a report to attach to a bug report")
    climbing.add_argument("--overwrite", action="store_true", help="replace files there; old ones stay as NAME.bak")
    add_run_options(climbing)


def run(arguments: argparse.Namespace) -> int:
    """Print what failed and why; exit 0 when nothing did, 1 with a failure, 2 when nothing can be read."""
    target = arguments.target or Path(PLAN_NAME)
    wrong = run_options_error(arguments)
    if wrong:
        return fail(wrong, 2)
    if _is_configuration(target):
        from wizard.commands.debug_ladder import climb

        return climb(arguments, target)
    return _explain(arguments, target)


def _is_configuration(target: Path) -> bool:
    if target.is_dir():
        return not is_run_folder(target)
    return target.suffix in (".yaml", ".yml")


def _explain(arguments: argparse.Namespace, target: Path) -> int:
    try:
        plan = load_plan(arguments.plan) if arguments.plan else Plan()
        found = diagnose_path(target, plan)
    except (PlanError, NoRun) as error:
        return fail(str(error), 2)
    except OSError as error:
        return fail(reason(error), 2)
    if arguments.json:
        json.dump(msgspec.to_builtins(found) if found else None, sys.stdout)
        print()
    else:
        print(scrub(diagnosis_text(found)) if found else "no failure found")
    return 1 if found else 0
