"""One rank of a cluster check: `python _target_entry.py wizard.cluster.worker SPEC FOLDER` under a launcher."""

from __future__ import annotations

import dataclasses
import os
import socket
from datetime import timedelta
from typing import Any

from wizard.cluster.report import Measurements
from wizard.cluster.spec import CheckSpec, read_check
from wizard.validation.rank_environment import NODE_VARIABLE
from wizard.validation.reporter import Reporter
from wizard.validation.worker import run_rank


def main(argv: list[str]) -> int:
    """Tell what this rank's node has, then measure with the others; 0 when all of it could be done."""
    return run_rank(argv, lambda file, reporter: _run(read_check(file), reporter))


def _run(spec: CheckSpec, reporter: Reporter) -> None:
    node = os.environ.get(NODE_VARIABLE) or socket.gethostname()
    with reporter.running("facts"):
        from wizard.cluster.node_facts import read_node_facts

        reporter.metric(pid=os.getpid())
        own = read_node_facts(reporter.rank, node, os.environ["MASTER_ADDR"], spec.model_path)
        reporter.metric(facts=[dataclasses.asdict(own)])
    with reporter.running("meet"):
        store, exchange = _rendezvous(spec)
        facts: list[dict[str, Any]] = exchange.all("facts", dataclasses.asdict(own))
        nodes = [fact["node"] for fact in facts]
        # Torchruns hear of their own ranks only: one of each node's tells of all.
        teller = nodes.index(node) == reporter.rank
        if teller:
            reporter.metric(facts=facts)
        torches = {fact["versions"].get("torch") for fact in facts}
        if len(torches) > 1:
            reporter.log("nothing is measured: collectives between different releases of torch may hang")
            return
        _agree(exchange.all("gloo", _gloo_problem()), nodes, reporter.rank)
        device = _join(spec, store)
    with reporter.running("clocks"):
        firsts = [nodes.index(name) for name in dict.fromkeys(nodes)][1:]
        clocks = [exchange.clock_of(rank, nodes[rank]) for rank in firsts if reporter.rank in (0, rank)]
    with reporter.running("compute"):
        from wizard.cluster import measure

        step = measure.compute_clock(reporter.rank, node, device)
    with reporter.running("bandwidth"):
        remarks: list[str] = []
        groups = measure.groups_of(nodes)
        bandwidths = [one for group in groups for one in measure.measure_group(group, device, remarks)]
    own_part = Measurements(
        "nccl" if device.type == "cuda" else "gloo",
        tuple(bandwidths),
        (step,),
        tuple(clock for clock in clocks if clock is not None),
        tuple(dict.fromkeys(remarks)),
    )
    parts = exchange.all("measured", dataclasses.asdict(own_part))
    if teller:
        reporter.metric(measured=parts)

    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()


def _rendezvous(spec: CheckSpec) -> tuple[Any, Any]:
    """Return the store all ranks share, and the exchange through it."""
    from torch.distributed.rendezvous import rendezvous

    from wizard.cluster.exchange import Exchange

    limit = timedelta(seconds=spec.step_limit_seconds)
    store, rank, world = next(iter(rendezvous("env://", timeout=limit)))
    store.set_timeout(limit)
    return store, Exchange(store, rank, world)


def _gloo_problem() -> str:
    """Return why gloo cannot be used on this node, which it says before it meets another; empty when it can."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    try:
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    except RuntimeError as error:
        return str(error)
    dist.destroy_process_group()
    return ""


def _agree(problems: list[str], nodes: list[str], rank: int) -> None:
    """Go on only where all ranks can: the others would wait for those that cannot.

    Raises:
        RuntimeError: the problem of this rank, else of the first that has one.
    """
    first = rank if problems[rank] else next((at for at, problem in enumerate(problems) if problem), None)
    if first is not None:
        raise RuntimeError(f"gloo cannot be used on node {nodes[first]}: {problems[first]}")


def _join(spec: CheckSpec, store: Any) -> Any:
    """Join the process group with the backends that verl uses (0.9.1 `utils/distributed.py`); return the device."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    if spec.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if spec.device == "cuda" else "gloo",
        store=PrefixStore("ranks", store),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=spec.step_limit_seconds),
    )
    dist.all_reduce(torch.ones(1, device=device))
    return device
