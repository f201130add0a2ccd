"""Where a run's ranks are: on this machine, on several with a torchrun each, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wizard.nodes.requirements import split_ranks
from wizard.plan import Plan
from wizard.target import ENTRY, target_command
from wizard.validation.spec import RankSpec

RENDEZVOUS_SECONDS = 60.0
"""How long torchruns on several nodes wait for each other."""


@dataclass(frozen=True)
class Torchrun:
    """torchrun on this machine; with several nodes, one of the torchruns that meet at `rdzv_endpoint`."""

    nodes: int = 1
    node_rank: int = 0
    rdzv_endpoint: str = ""
    """`host:port` on node 0; unused with one node."""

    def ranks(self, spec: RankSpec) -> Sequence[int]:
        """Return the ranks that this machine starts and hears of."""
        count = split_ranks(spec.world_size, self.nodes)
        return range(self.node_rank * count, (self.node_rank + 1) * count)

    def gpus(self, plan: Plan, here: int) -> int:
        """Return the GPUs at hand, where this machine has `here`: all nodes have as many."""
        return self.nodes * here

    def argv(self, spec: RankSpec, python: str, spec_file: Path, folder: Path) -> list[str]:
        """Return what the agent runs in the target interpreter."""
        return [
            *target_command(python, "")[:1],
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={split_ranks(spec.world_size, self.nodes)}",
            f"--nnodes={self.nodes}",
            "--max-restarts=0",
            *self._rendezvous(),
            str(ENTRY),
            spec.worker,
            str(spec_file),
            str(folder),
        ]

    def _rendezvous(self) -> list[str]:
        if self.nodes == 1:
            # A port of its own for every run, so that two runs on one machine do not meet.
            return ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        # Static: the ranks of a node follow from --node-rank.
        return [
            "--rdzv-backend=static",
            f"--rdzv-endpoint={self.rdzv_endpoint}",
            f"--node-rank={self.node_rank}",
            f"--rdzv-conf=timeout={RENDEZVOUS_SECONDS:.0f}",
        ]


@dataclass(frozen=True)
class RayCluster:
    """Actors on a Ray cluster that is already running."""

    nodes: int
    address: str = "auto"

    def ranks(self, spec: RankSpec) -> Sequence[int]:
        """Return the ranks that are heard of here: all."""
        return range(spec.world_size)

    def gpus(self, plan: Plan, here: int) -> int:
        """Return the GPUs at hand: the Plan's, as this machine may have none; the nodes are asked before they start."""
        return self.nodes * plan.machine.gpus_per_node

    def argv(self, spec: RankSpec, python: str, spec_file: Path, folder: Path) -> list[str]:
        """Return what the agent runs in the target interpreter."""
        arguments = (spec.worker, str(spec_file), str(folder), self.address, str(self.nodes))
        return target_command(python, "wizard.nodes.ray_driver", arguments)


Launch = Torchrun | RayCluster
