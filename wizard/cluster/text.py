"""A cluster report as tables for people."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wizard.cluster.check import ClusterReport
from wizard.cluster.judge_network import active_ports
from wizard.cluster.judge_pace import largest_of, link_of, rate_text
from wizard.cluster.report import Measurements, NodeFacts
from wizard.findings_text import finding_lines
from wizard.text import gib, printable, printable_lines
from wizard.verl.ray_demand import Demand


def report_text(report: ClusterReport) -> RenderableType:
    """Return everything a check found, the findings last: a terminal shows the end."""
    return Group(*_parts(report))


def _parts(report: ClusterReport) -> Iterator[RenderableType]:
    if report.nodes:
        yield _versions(report.nodes)
        yield _networks(report.nodes)
    if report.measured is not None:
        yield from _measurements(report.measured, {node.node: node for node in report.nodes})
    if report.demand is not None and report.ray_nodes:
        yield _ray(report, report.demand)
    lines = [line for finding in report.findings for line in finding_lines(finding)]
    counts = {name: sum(f.severity.value == name for f in report.findings) for name in ("error", "warning", "note")}
    lines.append(", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items()))
    if report.verdict.outcome == "cancelled":
        lines.append(report.verdict.sentence)
    yield Text("\n".join(lines))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: int = 99) -> Table:
    """Return a table; columns from number `right` on are numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, title_style="bold", pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(
            column, justify="right" if number >= right else "left", overflow="fold", no_wrap=column == "collective"
        )
    for row in rows:
        table.add_row(*(Text(printable_lines(cell)) for cell in row))
    return table


def _versions(nodes: Sequence[NodeFacts]) -> Table:
    """Return one column a node: releases, driver and GPUs below each other."""
    names = dict.fromkeys(name for node in nodes for name in node.versions)
    rows = [(name, *(node.versions.get(name, "none") for node in nodes)) for name in names]
    rows.append(("driver", *(node.driver or "none" for node in nodes)))
    rows.append(("GPUs", *(_gpus(node) for node in nodes)))
    if any(node.link for node in nodes):
        rows.append(("between GPUs", *(node.link for node in nodes)))
    if any(node.model for node in nodes):
        rows.append(("model", *(_model(node) for node in nodes)))
    return _table("Nodes", ("", *(node.node for node in nodes)), rows)


def _gpus(node: NodeFacts) -> str:
    kinds: dict[str, list[int]] = {}
    for gpu in node.gpus:
        kinds.setdefault(f"{gpu.name} {gib(gpu.total_bytes)}", []).append(gpu.free_bytes)
    return "\n".join(f"{len(free)} × {kind}, {gib(min(free))} free" for kind, free in kinds.items()) or "none"


def _model(node: NodeFacts) -> str:
    if node.model is None or not node.model.found:
        return "missing"
    return f"{len(node.model.sizes)} files, {gib(sum(node.model.sizes.values()))}"


def _networks(nodes: Sequence[NodeFacts]) -> Table:
    rows = []
    for node in nodes:
        for each in node.interfaces:
            if not each.addresses:
                continue
            speed = f"{each.speed_mbit / 1000:g} Gbit/s" if each.speed_mbit else "unknown"
            used = "rendezvous" if each.name == node.rendezvous_interface else ""
            rows.append((node.node, each.name, "up" if each.is_up else "down", speed, used, "\n".join(each.addresses)))
        active = active_ports(node)
        for port in node.infiniband:
            state = "up" if port in active else port.state
            kind = "RoCE" if port.link_layer == "Ethernet" else port.link_layer
            rows.append((node.node, f"{port.device}:{port.port}", state, f"{port.rate_gbit:g} Gbit/s", kind, ""))
    return _table("Networks", ("node", "interface", "", "speed", "used by", "addresses"), rows)


def _measurements(measured: Measurements, nodes: dict[str, NodeFacts]) -> Iterator[RenderableType]:
    # By their rounded sizes: a buffer is cut to a multiple of its group's ranks.
    sizes = dict.fromkeys(gib(one.bytes) for one in sorted(measured.bandwidths, key=lambda one: one.bytes))
    buses = {(one.nodes, one.collective, gib(one.bytes)): one.bus_bytes_per_second for one in measured.bandwidths}
    rows = []
    for one in largest_of(measured.bandwidths):
        link = link_of(one, nodes)
        share = f"{one.bus_bytes_per_second / link.bytes_per_second:.0%} of {link.name}" if link else "unknown link"
        bus = (buses.get((one.nodes, one.collective, size)) for size in sizes)
        cells = (rate_text(rate) if rate else "" for rate in bus)
        rows.append((" ⇄ ".join(one.nodes), one.collective, *cells, rate_text(one.algorithm_bytes_per_second), share))
    if rows:
        columns = ("nodes", "collective", *(f"bus {size}" for size in sizes), "algorithm", "share")
        yield _table(
            f"Bandwidth, {measured.backend}, as nccl-tests counts it; the last two of the largest buffer", columns, rows
        )
    if measured.remarks:
        yield Text(printable("; ".join(measured.remarks)))
    middle = statistics.median(step.compute_seconds for step in measured.steps)
    paces = [
        (
            str(step.rank),
            step.node,
            f"{step.compute_seconds * 1e3:.2f} ms",
            f"{step.compute_seconds / middle:.2f}",
            f"{step.wait_seconds * 1e3:.2f} ms",
        )
        for step in measured.steps
    ]
    yield _table(
        "Steps (one matrix product, then a barrier)", ("rank", "node", "compute", "× median", "waits"), paces, 2
    )
    if measured.clocks:
        clocks = [
            (each.node, f"{each.ahead_seconds * 1e3:+.2f} ms", f"± {each.error_seconds * 1e3:.2f} ms")
            for each in measured.clocks
        ]
        yield _table("Clocks against rank 0's node", ("node", "ahead", ""), clocks, 1)


def _ray(report: ClusterReport, demand: Demand) -> Table:
    rows: list[tuple[str, ...]] = [
        (pool.name, f"{pool.nodes} × {pool.gpus_per_node}", str(pool.gpus * pool.cpus_per_gpu)) for pool in demand.pools
    ]
    rows += [(f"{actors.count} × {actors.name}", "", str(actors.count)) for actors in demand.actors]
    rows.append(("verl asks for", str(demand.gpus), str(demand.cpus)))
    for node in report.ray_nodes:
        free = [f"{node.available.get(name, 0):g} of {node.total.get(name, 0):g} free" for name in ("GPU", "CPU")]
        rows.append((f"node {node.name}", *free))
    return _table("Ray", ("", "GPUs", "CPUs"), rows, 1)
