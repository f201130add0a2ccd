"""Arguments that say how ranks are run, shared by `validate`, `debug` and `cluster`."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import get_args

from wizard.commands.options import add_python
from wizard.nodes.reach import wait_for
from wizard.nodes.requirements import NodeError
from wizard.plan import Plan
from wizard.validation.launch import Launch, RayCluster, Torchrun
from wizard.validation.launcher import HERE
from wizard.validation.plan_spec import cpu_ranks, spec_from_plan
from wizard.validation.spec import Engine, ValidationSpec

MEET_SECONDS = 30.0
"""How long a node waits for node 0 of a run to appear."""


def add_rank_options(parser: argparse._ActionsContainer, ranks: str) -> None:
    """Declare how many ranks run on what; `ranks` is the default number in words."""
    parser.add_argument("--world-size", type=int, metavar="N", help=f"ranks (default: {ranks})")
    parser.add_argument("--cpu", action="store_true", help="gloo on the CPU, even where there are GPUs")
    add_python(parser)


def add_run_options(parser: argparse._ActionsContainer) -> None:
    """Declare how a validation is run."""
    add_rank_options(parser, "the Plan's, as far as GPUs allow")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens of a micro-batch (default: the Plan's on GPUs)")
    parser.add_argument("--random-weights", action="store_true", help="do not read the checkpoint")
    parser.add_argument(
        "--engine",
        choices=get_args(Engine),
        default="torch",
        help="whose code shards and steps: torch, used as verl does, or verl's own engine class (default: torch)",
    )


def run_options_error(arguments: argparse.Namespace) -> str:
    """Return what is wrong with them; empty when nothing is."""
    for name in ("world_size", "tokens"):
        value = getattr(arguments, name, None)
        if value is not None and value < 1:
            return f"--{name.replace('_', '-')} {value}: at least one is needed for a run"
    return ""


def add_launch_options(parser: argparse._ActionsContainer) -> None:
    """Declare where the ranks run; this machine alone when nothing is said."""
    parser.add_argument("--launcher", choices=("torchrun", "ray"), default="torchrun", help="what starts the ranks")
    parser.add_argument("--nodes", "--nnodes", type=int, metavar="N", help="machines (default: 1, with Ray the Plan's)")
    parser.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="where several torchruns meet: on node 0")
    parser.add_argument("--node-rank", type=int, default=0, metavar="K", help="which of the torchruns this is, from 0")
    parser.add_argument("--address", metavar="HOST:PORT", help="of a running Ray cluster (default: auto)")


def launch_of(arguments: argparse.Namespace, plan: Plan) -> Launch:
    """Return where the ranks run, once the meeting point of several torchruns can be reached.

    Raises:
        NodeError: the options do not fit together, or the meeting point cannot be reached.
    """
    nodes = arguments.nodes or (plan.machine.nodes if arguments.launcher == "ray" else 1)
    if nodes < 1:
        raise NodeError(f"--nodes {nodes}: at least one is needed for a run")
    if arguments.launcher == "ray":
        return RayCluster(nodes, arguments.address or "auto")
    if arguments.address:
        raise NodeError("--address is Ray's: add --launcher ray")
    if nodes == 1:
        return Torchrun()
    endpoint, node_rank = arguments.rdzv_endpoint or "", arguments.node_rank
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise NodeError(f"--rdzv-endpoint {endpoint}: {nodes} torchruns need HOST:PORT of node 0 to meet at")
    if not 0 <= node_rank < nodes:
        raise NodeError(f"--node-rank {node_rank}: {nodes} nodes are numbered 0 to {nodes - 1}")
    if node_rank:
        problem = wait_for(host.strip("[]"), int(port), MEET_SECONDS)
        if problem:
            raise NodeError(
                f"--rdzv-endpoint {endpoint} cannot be reached from this node: {problem}. Start node 0 first, and let "
                "the nodes reach each other on that port; torchrun would wait for it."
            )
    return Torchrun(nodes, node_rank, endpoint)


def make_spec(arguments: argparse.Namespace, plan: Plan, launch: Launch = HERE) -> ValidationSpec:
    """Return the run that comes closest to the Plan on the machines at hand.

    Raises:
        ModelError: the model cannot be validated here.
        EngineError: verl's engine is asked for, and the interpreter has none that is known.
    """
    gpus = gpus_at_hand(arguments, plan, launch)
    return spec_from_plan(
        plan,
        gpus=gpus,
        world_size=arguments.world_size or (cpu_ranks(launch.nodes) if not gpus else None),
        random_weights=arguments.random_weights,
        tokens=arguments.tokens,
        engine=arguments.engine,
        python=arguments.python,
    )


def gpus_at_hand(arguments: argparse.Namespace, plan: Plan, launch: Launch) -> int:
    """Return the GPUs of all nodes together; 0 runs on CPUs."""
    from wizard.probe.machine import probe_machine

    return 0 if arguments.cpu else launch.gpus(plan, probe_machine().gpus_per_node)


def cancel_on_signals(cancel: Callable[[], Awaitable[None]]) -> None:
    """Let ctrl+c, SIGTERM and a closed terminal end the run and its processes rather than this process alone."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: asyncio.ensure_future(cancel()))
