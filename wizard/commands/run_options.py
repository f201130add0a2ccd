"""Arguments that say how a validation is run, shared by `validate` and `debug`."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable

from wizard.commands.options import add_python
from wizard.plan import Plan
from wizard.validation.plan_spec import spec_from_plan
from wizard.validation.spec import ValidationSpec


def add_run_options(parser: argparse._ActionsContainer) -> None:
    """Declare them."""
    parser.add_argument("--world-size", type=int, metavar="N", help="ranks (default: the Plan's, as far as GPUs allow)")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens of a micro-batch (default: the Plan's on GPUs)")
    parser.add_argument("--random-weights", action="store_true", help="do not read the checkpoint")
    parser.add_argument("--cpu", action="store_true", help="gloo on the CPU, even where there are GPUs")
    add_python(parser)


def run_options_error(arguments: argparse.Namespace) -> str:
    """Return what is wrong with them; empty when nothing is."""
    for name in ("world_size", "tokens"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            return f"--{name.replace('_', '-')} {value}: at least one is needed for a run"
    return ""


def make_spec(arguments: argparse.Namespace, plan: Plan) -> ValidationSpec:
    """Return the run that comes closest to the Plan on this machine.

    Raises:
        ModelError: the model cannot be validated here.
    """
    return spec_from_plan(
        plan,
        gpus=0 if arguments.cpu else _gpus_here(),
        world_size=arguments.world_size,
        random_weights=arguments.random_weights,
        tokens=arguments.tokens,
    )


def _gpus_here() -> int:
    from wizard.probe.machine import probe_machine

    return probe_machine().gpus_per_node


def cancel_on_signals(cancel: Callable[[], Awaitable[None]]) -> None:
    """Let ctrl+c, SIGTERM and a closed terminal end the run and its processes rather than this process alone."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: asyncio.ensure_future(cancel()))
