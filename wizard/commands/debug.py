"""`verl-wizard debug LOG|RUN-FOLDER`: the first cause of a failure, and the change that removes it."""

from __future__ import annotations

import argparse
import errno
import json
import os
import stat
import sys
from pathlib import Path

import msgspec

from wizard.commands.options import fail, reason
from wizard.debugging.text import diagnosis_text
from wizard.diagnosis import Diagnosis
from wizard.diagnosis.diagnose import diagnose_log, diagnose_verdict
from wizard.diagnosis.log_lines import read_lines
from wizard.diagnosis.scrub import scrub
from wizard.plan import Plan, PlanError
from wizard.plan_file import load_plan
from wizard.validation.verdict import Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "target", type=Path, metavar="LOG|RUN-FOLDER", help="training log, or a validation's run folder"
    )
    parser.add_argument("--plan", type=Path, metavar="PLAN", help="the Plan that ran: fixes then start from its values")
    parser.add_argument("--json", action="store_true", help="the diagnosis as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis; exit 0 when there is no failure, 1 with one, 2 when nothing can be read."""
    try:
        plan = load_plan(arguments.plan) if arguments.plan else Plan()
        found = _diagnosed(arguments.target, plan)
    except PlanError as error:
        return fail(str(error), 2)
    except OSError as error:
        return fail(reason(error), 2)
    if arguments.json:
        json.dump(msgspec.to_builtins(found) if found else None, sys.stdout)
        print()
    else:
        print(scrub(diagnosis_text(found)) if found else "no failure found")
    return 1 if found else 0


def _diagnosed(target: Path, plan: Plan) -> Diagnosis | None:
    result = target / "result.json"
    if not target.is_dir():
        with target.open("rb") as stream:
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode) and not os.isatty(stream.fileno()):
                raise OSError(errno.EINVAL, "a device, not a log", str(target))
            return diagnose_log(read_lines(stream), plan)
    if result.exists():
        try:
            verdict = msgspec.json.decode(result.read_bytes(), type=Verdict)
        except msgspec.DecodeError as error:
            raise OSError(errno.EINVAL, f"not the result of a validation: {error}", str(result)) from error
        return diagnose_verdict(verdict, plan)
    log = target / "log.txt"
    if not log.exists():
        what = "holds neither result.json nor log.txt of a validation run, nor is it a log"
        raise FileNotFoundError(errno.ENOENT, what, str(target))
    with log.open("rb") as stream:
        return diagnose_log(read_lines(stream), plan)
