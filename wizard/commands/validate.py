"""`verl-wizard validate DIR|PLAN`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

import msgspec

from wizard.commands.options import fail, reason
from wizard.commands.run_options import (
    add_launch_options,
    add_run_options,
    cancel_on_signals,
    launch_of,
    make_spec,
    run_options_error,
)
from wizard.model.errors import ModelError
from wizard.nodes.requirements import NodeError
from wizard.plan import Plan, PlanError
from wizard.plan_file import FILE_NAME, load_plan
from wizard.text import printable
from wizard.validation.event_text import event_text
from wizard.validation.events import to_line
from wizard.validation.follow import FollowedRun
from wizard.validation.launch import Launch
from wizard.validation.launcher import Run
from wizard.validation.run_folder import NoRun, run_going_on
from wizard.validation.spec import ValidationSpec
from wizard.validation.verl_plan import EngineError

NEWEST = "newest"
EXIT_CODES = {"passed": 0, "cancelled": 130}
"""Of the verdicts; every other one is 1."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "target", nargs="?", type=Path, metavar="DIR|PLAN", help="folder that `generate` wrote, or a Plan"
    )
    parser.add_argument(
        "--attach",
        nargs="?",
        const=NEWEST,
        metavar="RUN-FOLDER",
        help="follow a validation that another wizard or command runs (default: the newest); ctrl+c leaves it running",
    )
    parser.add_argument("--end", action="store_true", help="with --attach: end that run, then show its verdict")
    add_run_options(parser)
    add_launch_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line: the events, then the verdict")


def run(arguments: argparse.Namespace) -> int:
    """Run the validation; exit 0 only when it passed, 1 otherwise, 130 when it was cancelled."""
    wrong = run_options_error(arguments) or _wrong_target(arguments)
    if wrong:
        return fail(wrong, 2)
    if arguments.attach is not None:
        return _attach(arguments)
    try:
        plan = read_plan(arguments.target)
    except PlanError as error:
        return fail(str(error), 2)
    except OSError as error:
        return fail(reason(error), 2)
    python = arguments.python or plan.target.python
    try:
        launch = launch_of(arguments, plan)
        spec = make_spec(arguments, plan, launch)
        return asyncio.run(_stream(spec, python, launch, as_json=arguments.json))
    except (NodeError, EngineError) as error:
        return fail(str(error), 2)
    except ModelError as error:
        return fail(str(error))
    except OSError as error:
        return fail(reason(error))


def read_plan(target: Path) -> Plan:
    """Read the Plan of a folder, or the file itself.

    Raises:
        PlanError: it is not a Plan.
        OSError: it cannot be read.
    """
    return load_plan(target / FILE_NAME if target.is_dir() else target)


def _wrong_target(arguments: argparse.Namespace) -> str:
    if arguments.attach is None:
        if arguments.end:
            return "--end goes with --attach"
        return "" if arguments.target else "give a folder or a Plan to validate, or --attach"
    return f"--attach: {arguments.target} is not run again; leave it out" if arguments.target else ""


def _attach(arguments: argparse.Namespace) -> int:
    folder = run_going_on() if arguments.attach == NEWEST else Path(arguments.attach)
    if folder is None:
        return fail("--attach: no validation is going on", 2)
    try:
        return asyncio.run(_follow(FollowedRun(folder), end=arguments.end, as_json=arguments.json))
    except NoRun as error:
        return fail(str(error), 2)
    except OSError as error:
        return fail(reason(error), 2)


async def _stream(spec: ValidationSpec, python: str, launch: Launch, *, as_json: bool) -> int:
    run = await Run.start(spec, python, launch=launch)
    cancel_on_signals(run.cancel)
    return await _tell(run, as_json=as_json)


async def _follow(run: FollowedRun, *, end: bool, as_json: bool) -> int:
    if end:
        await run.cancel()
    return await _tell(run, as_json=as_json)


async def _tell(run: Run | FollowedRun, *, as_json: bool) -> int:
    print(f"verl-wizard: run folder {run.folder}", file=sys.stderr)
    async for event in run.events():
        sys.stdout.write(to_line(event) if as_json else event_text(event))
        sys.stdout.flush()
    verdict = run.verdict
    assert verdict is not None
    if as_json:
        data = msgspec.to_builtins(verdict) | {"kind": "verdict", "sentence": verdict.sentence}
        print(json.dumps(data))
    else:
        print(printable(verdict.sentence))
    return EXIT_CODES.get(verdict.outcome, 1)
