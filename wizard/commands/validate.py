"""`verl-wizard validate DIR|PLAN`."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

import msgspec

from wizard.commands.options import add_python, fail, reason
from wizard.model.errors import ModelError
from wizard.plan import Plan, PlanError
from wizard.plan_file import FILE_NAME, load_plan
from wizard.text import gib, printable
from wizard.validation.events import Event, to_line
from wizard.validation.launcher import Run
from wizard.validation.plan_spec import spec_from_plan
from wizard.validation.spec import ValidationSpec

EXIT_CODES = {"passed": 0, "cancelled": 130}
"""Of the verdicts; every other one is 1."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("target", type=Path, metavar="DIR|PLAN", help="folder that `generate` wrote, or a Plan")
    parser.add_argument("--world-size", type=int, metavar="N", help="ranks (default: the Plan's, as far as GPUs allow)")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens of a micro-batch (default: the Plan's on GPUs)")
    parser.add_argument("--random-weights", action="store_true", help="do not read the checkpoint")
    parser.add_argument("--cpu", action="store_true", help="gloo on the CPU, even where there are GPUs")
    add_python(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line: the events, then the verdict")


def run(arguments: argparse.Namespace) -> int:
    """Run the validation; exit 0 only when it passed, 1 otherwise, 130 when it was cancelled."""
    if arguments.world_size is not None and arguments.world_size < 1:
        return fail(f"--world-size {arguments.world_size}: at least one rank has to run", 2)
    try:
        plan = read_plan(arguments.target)
    except PlanError as error:
        return fail(str(error), 2)
    except OSError as error:
        return fail(reason(error), 2)
    python = arguments.python or plan.target.python
    try:
        spec = spec_from_plan(
            plan,
            gpus=0 if arguments.cpu else _gpus_here(),
            world_size=arguments.world_size,
            random_weights=arguments.random_weights,
            tokens=arguments.tokens,
        )
        return asyncio.run(_stream(spec, python, as_json=arguments.json))
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


def _gpus_here() -> int:
    from wizard.probe.machine import probe_machine

    return probe_machine().gpus_per_node


async def _stream(spec: ValidationSpec, python: str, *, as_json: bool) -> int:
    run = await Run.start(spec, python)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: asyncio.ensure_future(run.cancel()))
    print(f"verl-wizard: run folder {run.folder}", file=sys.stderr)
    async for event in run.events():
        sys.stdout.write(to_line(event) if as_json else _line(event))
        sys.stdout.flush()
    verdict = run.verdict
    assert verdict is not None
    if as_json:
        data = msgspec.to_builtins(verdict) | {"kind": "verdict", "sentence": verdict.sentence}
        print(json.dumps(data))
    else:
        print(printable(verdict.sentence))
    return EXIT_CODES.get(verdict.outcome, 1)


def _line(event: Event) -> str:
    """Return an event as a line for people; empty for what only one rank need tell."""
    data = event.data
    if event.kind == "failure":
        return f"rank {event.rank}  {event.step}: {data.get('exception')}: {printable(str(data.get('message')))}\n"
    if event.rank != 0:
        return ""
    if event.kind == "step_finished":
        return f"{event.step:12} done in {float(data['seconds']):.2f} s\n"
    if event.kind == "metric":
        return "".join(f"  {name:30} {_value(value)}\n" for name, value in data.items())
    if event.kind == "memory":
        sizes = (f"{name.removesuffix('_bytes')} {gib(value)}" for name, value in data.items() if name != "phase")
        return f"  memory after {data['phase']}: {', '.join(sizes)}\n"
    if event.kind == "log":
        return f"  note: {printable(str(data['message']))}\n"
    return ""


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(str(value))
