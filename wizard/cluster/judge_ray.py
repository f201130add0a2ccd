"""Ray's nodes against what verl asks of Ray for a Plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wizard.cluster.checks import found
from wizard.findings import Finding
from wizard.nodes.requirements import RayNode
from wizard.verl.ray_demand import Demand, Room, Unplaced, place


def rooms_of(nodes: Sequence[RayNode]) -> tuple[Room, ...]:
    """Return what each node has to give now, in the order in which storage units are dealt out (by id)."""
    return tuple(
        Room(node.name, node.available.get("CPU", 0), node.available.get("GPU", 0))
        for node in sorted(nodes, key=lambda node: node.id)
    )


def judge_ray(demand: Demand, nodes: Sequence[RayNode]) -> Iterator[Finding]:
    """Yield what no node can hold, one finding a pool or kind of actor; Ray lets verl wait for it without a word."""
    missing = place(demand, rooms_of(nodes))
    for what in dict.fromkeys(one.what for one in missing):
        alike = [one for one in missing if one.what == what]
        first = alike[0]
        left = "; ".join(f"{room.name} has {room.gpus:g} GPUs and {room.cpus:g} CPUs" for room in _rooms_left(alike))
        remedy = (
            "Take fewer GPUs a node, or join nodes that have them."
            if first.lacks_gpus
            else "Start Ray there with more CPUs (ray start --num-cpus), or ask for less."
        )
        asks = f"{first.gpus} GPUs and {first.cpus} CPUs" if first.gpus else f"{first.cpus} CPU"
        numbers = ", ".join(str(number) for number in dict.fromkeys(one.number for one in alike))
        kind = "node" if first.gpus else "number"
        text = f"{asks} on one node is what each asks for, and left are: {left}. verl waits for ever. {remedy}"
        yield found("ray-bundle", f"{what}, {kind}", numbers, text)


def _rooms_left(alike: Sequence[Unplaced]) -> tuple[Room, ...]:
    return tuple({room.name: room for one in alike for room in one.left}.values())
