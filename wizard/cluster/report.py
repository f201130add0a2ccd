"""What a cluster check finds: facts of each rank's node, and what the ranks measured together.

Standard library only: ranks build these in the target interpreter, the wizard reads them back from their events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Collective = Literal["all-reduce", "all-gather", "reduce-scatter"]


@dataclass(frozen=True)
class GpuFacts:
    """One GPU of a node, before the check has touched it."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    compute_capability: str = ""


@dataclass(frozen=True)
class Interface:
    """One network interface, as the operating system tells it."""

    name: str
    addresses: tuple[str, ...]
    """IPv4 and IPv6 addresses."""
    is_up: bool
    speed_mbit: int
    """Link speed in Mbit/s; 0 where the driver does not tell, as for virtual interfaces."""


@dataclass(frozen=True)
class InfinibandPort:
    """One port of an InfiniBand or RoCE device (/sys/class/infiniband)."""

    device: str
    port: int
    state: str
    """`ACTIVE`, `DOWN`, …"""
    rate_gbit: float
    """Signalling rate in Gbit/s."""
    link_layer: str
    """`InfiniBand`, or `Ethernet` for RoCE."""


@dataclass(frozen=True)
class ModelFolder:
    """The model's folder as one node sees it."""

    path: str
    """As it was asked for."""
    resolved: str
    """With this node's home directory."""
    found: bool
    sizes: dict[str, int]
    """Bytes by file name."""
    digests: dict[str, str]
    """SHA-256 of the configuration and index files."""


@dataclass(frozen=True)
class NodeFacts:
    """What one rank finds on its node before anything runs together."""

    rank: int
    node: str
    """As the launcher names it."""
    versions: dict[str, str]
    """Of python, torch, CUDA, NCCL, transformers, verl and ray; what is not installed is absent."""
    driver: str
    gpus: tuple[GpuFacts, ...]
    link: str
    """How this node's GPUs reach each other: `NVLink NV18`, `PCIe PHB`; empty when unknown or without pairs."""
    link_bytes_per_second: float
    """One GPU's share of it in one direction; 0 when unknown."""
    interfaces: tuple[Interface, ...]
    infiniband: tuple[InfinibandPort, ...]
    rendezvous: str
    """Address of the rendezvous."""
    rendezvous_interface: str
    """Interface that the way there begins with; empty when it cannot be told."""
    environment: dict[str, str]
    """Variables that choose networks (`NCCL_…`, `GLOO_…`)."""
    model: ModelFolder | None = None
    unread: tuple[str, ...] = ()
    """What could not be read and why."""


@dataclass(frozen=True)
class Bandwidth:
    """One collective over one group of ranks, in the convention of nccl-tests (doc/PERFORMANCE.md)."""

    nodes: tuple[str, ...]
    """One node, or a pair."""
    ranks: int
    collective: Collective
    bytes: int
    """Of the whole buffer: what a rank puts in for all-reduce and reduce-scatter, what it gets for all-gather."""
    seconds: float
    """Of one operation, averaged over ranks."""
    backend: str

    @property
    def algorithm_bytes_per_second(self) -> float:
        """Algorithm bandwidth: buffer size by time."""
        return self.bytes / self.seconds

    @property
    def bus_bytes_per_second(self) -> float:
        """Bus bandwidth, which is comparable with a link's rate whatever the number of ranks."""
        return self.algorithm_bytes_per_second * bus_factor(self.collective, self.ranks)


def bus_factor(collective: Collective, ranks: int) -> float:
    """Return bus by algorithm bandwidth: 2(n-1)/n for all-reduce, (n-1)/n for the others (nccl-tests)."""
    return (2 if collective == "all-reduce" else 1) * (ranks - 1) / ranks


@dataclass(frozen=True)
class StepClock:
    """How long a rank computed in each of some equal steps, and then waited for the others; medians in seconds."""

    rank: int
    node: str
    compute_seconds: float
    wait_seconds: float


@dataclass(frozen=True)
class WallClock:
    """A node's clock against rank 0's."""

    node: str
    ahead_seconds: float
    """Negative where it is behind."""
    error_seconds: float
    """The true difference is at most so far away: half of the shortest round trip."""


@dataclass(frozen=True)
class Measurements:
    """What the ranks measured together."""

    backend: str
    bandwidths: tuple[Bandwidth, ...] = ()
    steps: tuple[StepClock, ...] = ()
    clocks: tuple[WallClock, ...] = ()
    remarks: tuple[str, ...] = ()
    """What was left out and why."""
