"""What ranks measure together: bandwidth of collectives within and between nodes, and each rank's pace.

Target interpreter, torch only. The convention is nccl-tests' (doc/PERFORMANCE.md, src/common.cu): the time of one
operation is averaged over ranks; of all-gather and reduce-scatter the whole buffer is counted.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from wizard.cluster.report import Bandwidth, Collective, StepClock

SIZES_BYTES = {"cuda": (1 << 20, 32 << 20, 256 << 20), "cpu": (1 << 20, 8 << 20)}
RUNS = {"cuda": 20, "cpu": 3}
WARM_UP_RUNS = {"cuda": 5, "cpu": 1}
COMPUTE_STEPS = 10
MATRIX = {"cuda": 8192, "cpu": 384}
"""Rows of the square matrices that are multiplied in one step."""
ALL_PAIRS_NODES = 8
"""With more nodes, each is measured with the next only: their pairs grow with the square."""

_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Group:
    """Ranks that measure together: those of one node, or of two."""

    nodes: tuple[str, ...]
    ranks: tuple[int, ...]


def groups_of(nodes: Sequence[str]) -> tuple[Group, ...]:
    """Return what is measured, `nodes` being the node of each rank."""
    ranks = {node: tuple(rank for rank, its in enumerate(nodes) if its == node) for node in dict.fromkeys(nodes)}
    names = list(ranks)
    pairs = list(itertools.combinations(names, 2))
    if len(names) > ALL_PAIRS_NODES:
        pairs = list(zip(names, [*names[1:], names[0]], strict=True))
    within = [Group((node,), of) for node, of in ranks.items() if len(of) > 1]
    return (*within, *(Group(pair, ranks[pair[0]] + ranks[pair[1]]) for pair in pairs))


def compute_clock(rank: int, node: str, device: torch.device) -> StepClock:
    """Run equal steps on all ranks, each a matrix product and a barrier, and return this rank's median times."""
    side = MATRIX[device.type]
    matrix = torch.rand(side, side, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    token = torch.zeros(1, device=device)
    computed, waited = [], []
    for turn in range(COMPUTE_STEPS + 2):
        started = time.perf_counter()
        torch.mm(matrix, matrix)
        _finish(device)
        done = time.perf_counter()
        dist.all_reduce(token)
        _finish(device)
        if turn >= 2:
            computed.append(done - started)
            waited.append(time.perf_counter() - done)
    return StepClock(rank, node, statistics.median(computed), statistics.median(waited))


def measure_group(group: Group, device: torch.device, remarks: list[str]) -> list[Bandwidth]:
    """Measure all collectives over a group; every rank of the world calls this, the group's first gets the answers."""
    process_group = dist.new_group(list(group.ranks))
    if dist.get_rank() not in group.ranks:
        return []
    backend = "nccl" if device.type == "cuda" else "gloo"
    found: list[Bandwidth] = []
    for size in SIZES_BYTES[device.type]:
        for name, run in _collectives(size, len(group.ranks), device, process_group).items():
            try:
                seconds = _seconds(run, device, process_group)
            except RuntimeError as error:
                if "support" not in str(error):
                    raise
                remarks.append(f"{name}: {backend} of torch {torch.__version__} does not have it")
                continue
            buffer = size // _ELEMENT_BYTES // len(group.ranks) * len(group.ranks) * _ELEMENT_BYTES
            found.append(Bandwidth(group.nodes, len(group.ranks), name, buffer, seconds, backend))
    dist.destroy_process_group(process_group)
    return found if dist.get_rank() == group.ranks[0] else []


def _collectives(size: int, ranks: int, device: torch.device, group: Any) -> dict[Collective, Callable[[], Any]]:
    """Return one call of each collective on buffers of `size` bytes, rounded down to a multiple of the ranks."""
    part = torch.zeros(size // _ELEMENT_BYTES // ranks, device=device)
    whole = torch.zeros(part.numel() * ranks, device=device)
    return {
        "all-reduce": lambda: dist.all_reduce(whole, group=group),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
    }


def _seconds(run: Callable[[], Any], device: torch.device, group: Any) -> float:
    """Return the time of one call, averaged over the group's ranks."""
    for _ in range(WARM_UP_RUNS[device.type]):
        run()
    _finish(device)
    dist.barrier(group)
    started = time.perf_counter()
    for _ in range(RUNS[device.type]):
        run()
    _finish(device)
    own = torch.tensor([(time.perf_counter() - started) / RUNS[device.type]], dtype=torch.float64, device=device)
    dist.all_reduce(own, group=group)
    return float(own.item()) / dist.get_world_size(group)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
