"""Ray's nodes against what verl asks of Ray for a Plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wizard.cluster.checks import found
from wizard.findings import Finding
from wizard.nodes.requirements import RayNode
from wizard.verl.ray_demand import Demand, Room, place


def rooms_of(nodes: Sequence[RayNode]) -> tuple[Room, ...]:
    """Return what each node has to give now, in the order in which storage units are dealt out (by id)."""
    return tuple(
        Room(node.name, node.available.get("CPU", 0), node.available.get("GPU", 0))
        for node in sorted(nodes, key=lambda node: node.id)
    )


def judge_ray(demand: Demand, nodes: Sequence[RayNode]) -> Iterator[Finding]:
    """Yield what no node can hold; Ray lets verl wait for it without a word."""
    for missing in place(demand, rooms_of(nodes)):
        left = ", ".join(f"{room.name} has {room.gpus:g} GPUs and {room.cpus:g} CPUs left" for room in missing.left)
        remedy = (
            "Take fewer GPUs a node, or join nodes that have them."
            if missing.lacks_gpus
            else "Start Ray there with more CPUs (ray start --num-cpus), or ask for less."
        )
        asks = f"{missing.gpus} GPUs and {missing.cpus} CPUs" if missing.gpus else f"{missing.cpus} CPU"
        yield found("ray-bundle", missing.what, asks, f"No node holds it, and verl waits for ever: {left}. {remedy}")
