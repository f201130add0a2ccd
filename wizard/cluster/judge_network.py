"""Interfaces and InfiniBand against what NCCL, gloo and the rendezvous take. Pure.

Sources: NCCL User Guide, "Environment variables" (NCCL_SOCKET_IFNAME: prefixes, `=` exact, `^` excluded; lo and docker
are left out by default; NCCL_IB_DISABLE); torch `ProcessGroupGloo` (GLOO_SOCKET_IFNAME: names, comma-separated).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from wizard.cluster.checks import differing, found
from wizard.cluster.report import InfinibandPort, Interface, NodeFacts
from wizard.findings import Finding

BRIDGE = re.compile(r"docker\d*|br-[0-9a-f]{6,}|virbr\d+|cni\d+|podman\d+|veth.*|flannel.*|cali.*")
"""Names that container runtimes and libvirt give; their addresses mean another machine on every node."""
NAMED = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def judge_network(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Yield what is wrong with a node's networks; `nodes` has one entry a node."""
    for node in nodes:
        yield from _interfaces(node, alone=len(nodes) == 1)
        yield from _infiniband(node)
    ports = {node.node: _ports_text(active_ports(node)) for node in nodes}
    if len(set(ports.values())) > 1:
        text = "The slowest node decides: bring the missing ports up, or give NCCL_IB_HCA those that all have."
        yield found("infiniband-differs", "active ports", differing(ports), text)
    for name in sorted({name for node in nodes for name in node.environment} - set(NAMED)):
        values = {node.node: node.environment.get(name, "") for node in nodes}
        if len(set(values.values())) > 1:
            text = "NCCL then chooses differently on the nodes and may hang: set it alike, before Ray starts."
            yield found("network-variables-differ", name, differing(values), text)


def usable(interfaces: Sequence[Interface]) -> tuple[Interface, ...]:
    """Return the interfaces that lead to other machines: up, addressed, neither loopback nor a bridge."""
    own = (each for each in interfaces if each.is_up and not BRIDGE.fullmatch(each.name))
    return tuple(each for each in own if any(map(_leads_out, each.addresses)))


def active_ports(node: NodeFacts) -> tuple[InfinibandPort, ...]:
    """Return the InfiniBand and RoCE ports that carry data."""
    return tuple(port for port in node.infiniband if port.state == "ACTIVE")


def infiniband_off(node: NodeFacts) -> bool:
    """Return whether NCCL is told to leave InfiniBand alone."""
    return node.environment.get("NCCL_IB_DISABLE", "0") not in ("", "0")


def chosen(variable: str, value: str, interfaces: Sequence[Interface]) -> tuple[Interface, ...]:
    """Return the interfaces that a variable leaves."""
    if variable == "GLOO_SOCKET_IFNAME":
        return tuple(each for each in interfaces if each.name in value.split(","))
    mark = value[:1] if value[:1] in "^=" else ""
    names = tuple(filter(None, value.lstrip("^=").split(",")))
    matches: Callable[[str], bool] = (
        (lambda name: name in names) if "=" in value[:2] else (lambda name: name.startswith(names))
    )
    return tuple(each for each in interfaces if matches(each.name) != (mark == "^"))


def _leads_out(address: str) -> bool:
    return not address.startswith(("127.", "169.254.", "fe80:")) and address != "::1"


def _interfaces(node: NodeFacts, *, alone: bool) -> Iterator[Finding]:
    if not node.interfaces:
        return
    there = ", ".join(each.name + ("" if each.is_up else " (down)") for each in node.interfaces)
    for variable in NAMED:
        value = node.environment.get(variable)
        if value and not any(each.is_up for each in chosen(variable, value, node.interfaces)):
            text = f"It names no interface of node {node.node} that is up; there are {there}. Set it to one of them."
            yield found("interface-unknown", f"{variable} on node {node.node}", value, text)
    if alone:
        return
    ways = usable(node.interfaces)
    if not ways:
        text = "Other machines cannot reach it: bring a network interface up, or give the container the host's network."
        yield found("loopback-only", f"interfaces of node {node.node}", there, text)
    if BRIDGE.fullmatch(node.rendezvous_interface):
        text = "That is a bridge to containers of this machine. Give the rendezvous an address of a real network."
        yield found("rendezvous-bridge", f"rendezvous on node {node.node}", node.rendezvous_interface, text)
    unset = [variable for variable in NAMED if variable not in node.environment]
    if len(ways) > 1 and unset:
        text = f"NCCL and gloo choose one themselves. To be sure, set {' and '.join(unset)} to the one the nodes share."
        yield found("interface-choice", f"interfaces of node {node.node}", ", ".join(way.name for way in ways), text)


def _infiniband(node: NodeFacts) -> Iterator[Finding]:
    active = active_ports(node)
    down = [port for port in node.infiniband if port.state != "ACTIVE"]
    if down:
        listed = ", ".join(f"{port.device}:{port.port} {port.state or 'unknown'}" for port in down)
        text = "NCCL does not use them (ibstat there tells why): cable, switch port or subnet manager."
        yield found("infiniband-down", f"ports of node {node.node}", listed, text)
    if active and infiniband_off(node):
        text = f"NCCL uses sockets although {_ports_text(active)} is there: unset it."
        yield found("infiniband-off", f"NCCL_IB_DISABLE on node {node.node}", node.environment["NCCL_IB_DISABLE"], text)


def _ports_text(ports: Sequence[InfinibandPort]) -> str:
    rates: dict[str, int] = {}
    for port in ports:
        kind = "RoCE" if port.link_layer == "Ethernet" else "InfiniBand"
        rates[f"{kind} {port.rate_gbit:g} Gbit/s"] = rates.get(f"{kind} {port.rate_gbit:g} Gbit/s", 0) + 1
    return ", ".join(f"{count} × {rate}" for rate, count in sorted(rates.items()))
