"""Bandwidth against links, ranks and clocks against each other. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wizard.cluster.checks import NOTE, found
from wizard.cluster.judge_network import active_ports, infiniband_off
from wizard.cluster.report import Bandwidth, Measurements, NodeFacts
from wizard.findings import Finding

LOW_SHARE = 0.5
"""Share of the link's rate below which NCCL's bus bandwidth of the largest buffer is worth a look."""
UNEVEN_SHARE = 0.5
"""Share of the median of all pairs below which a pair of nodes is."""
SLOW_RATIO = 1.3
"""Compute time by the median of all ranks from which a rank is a straggler."""
SKEW_SECONDS = 1.0
"""Difference of clocks that shows in logs, in file times on NFS and in expiring tokens; chrony keeps milliseconds."""


@dataclass(frozen=True)
class LinkRate:
    """What a group's ranks could reach at most."""

    name: str
    bytes_per_second: float


def judge_pace(measured: Measurements, nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Yield links, ranks and clocks that stand out; `nodes` by name."""
    largest = largest_of(measured.bandwidths)
    for one in largest:
        link = link_of(one, nodes)
        share = one.bus_bytes_per_second / link.bytes_per_second if link else None
        if link and share is not None and share < LOW_SHARE and one.backend == "nccl":
            text = f"{share:.0%} of {link.name}. NCCL_DEBUG=INFO tells which way it takes; see cables, PCIe, IOMMU."
            yield found("bandwidth-low", _what(one), rate_text(one.bus_bytes_per_second), text)
    yield from _uneven(largest)
    yield from _stragglers(measured)
    for clock in measured.clocks:
        if abs(clock.ahead_seconds) - clock.error_seconds > SKEW_SECONDS:
            text = "Logs, file times and expiring tokens disagree between nodes. Let chrony or ntpd keep the time."
            value = f"{clock.ahead_seconds:+.2f} s ± {clock.error_seconds:.3f} s"
            yield found("clock-skew", f"clock of node {clock.node}", value, text)


def largest_of(bandwidths: Sequence[Bandwidth]) -> tuple[Bandwidth, ...]:
    """Return the measurements of the largest buffer of each group and collective."""
    best: dict[tuple[tuple[str, ...], str], Bandwidth] = {}
    for one in bandwidths:
        key = (one.nodes, one.collective)
        if key not in best or one.bytes > best[key].bytes:
            best[key] = one
    return tuple(best.values())


def link_of(one: Bandwidth, nodes: Mapping[str, NodeFacts]) -> LinkRate | None:
    """Return the rate of the link that a measurement went over; None where it is not known.

    Between nodes that is the slower node's sum of active InfiniBand ports with NCCL, else its interface to the
    rendezvous; within a node what the GPU's NVLinks carry.
    """
    facts = [nodes[name] for name in one.nodes if name in nodes]
    if len(one.nodes) == 1:
        rate = facts[0].link_bytes_per_second if facts and one.backend == "nccl" else 0.0
        return LinkRate(facts[0].link.removeprefix("every pair: "), rate) if rate else None
    rates = [_outward(node, one.backend) for node in facts]
    known = [rate for rate in rates if rate is not None]
    return min(known, key=lambda rate: rate.bytes_per_second) if known and len(known) == len(one.nodes) else None


def _outward(node: NodeFacts, backend: str) -> LinkRate | None:
    ports = active_ports(node)
    if backend == "nccl" and ports and not infiniband_off(node):
        gbit = sum(port.rate_gbit for port in ports)
        return LinkRate(f"{gbit:g} Gbit/s of {len(ports)} ports", gbit * 1e9 / 8)
    speed = next((each.speed_mbit for each in node.interfaces if each.name == node.rendezvous_interface), 0)
    return LinkRate(f"{speed / 1000:g} Gbit/s of {node.rendezvous_interface}", speed * 1e6 / 8) if speed else None


def _uneven(largest: Sequence[Bandwidth]) -> Iterator[Finding]:
    pairs = [one for one in largest if len(one.nodes) == 2 and one.collective == "all-reduce"]
    if len(pairs) < 3:
        return
    middle = statistics.median(one.bus_bytes_per_second for one in pairs)
    for one in pairs:
        if one.bus_bytes_per_second < UNEVEN_SHARE * middle:
            text = f"The median of all pairs is {rate_text(middle)}: compare the two nodes' links and switch ports."
            yield found("bandwidth-uneven", _what(one), rate_text(one.bus_bytes_per_second), text)


def _stragglers(measured: Measurements) -> Iterator[Finding]:
    if len(measured.steps) < 2:
        return
    middle = statistics.median(step.compute_seconds for step in measured.steps)
    for step in measured.steps:
        ratio = step.compute_seconds / middle if middle else 1.0
        if ratio > SLOW_RATIO:
            text = "All others wait for it in every step: look for heat, a power limit or another process there."
            # Ranks on a CPU share its cores with whatever else runs.
            severity = NOTE if measured.backend == "gloo" else None
            value = f"{ratio:.2f} × the median"
            yield found("straggler", f"rank {step.rank} on node {step.node}", value, text, severity)


def rate_text(bytes_per_second: float) -> str:
    """Return `12.3 GB/s` or `310 MB/s`; decimal, as network and NVLink rates are."""
    if bytes_per_second >= 1e9:
        return f"{bytes_per_second / 1e9:.1f} GB/s"
    return f"{bytes_per_second / 1e6:.0f} MB/s"


def _what(one: Bandwidth) -> str:
    where = f"within node {one.nodes[0]}" if len(one.nodes) == 1 else f"between nodes {' and '.join(one.nodes)}"
    return f"{one.collective} {where}"
