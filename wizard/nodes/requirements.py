"""What a run asks of nodes, and which node does not give it. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NODES_STEP = "nodes"
"""The step in which a run fails whose nodes cannot do it; it comes before the first step of any rank."""
COLOCATED_CPUS = 3
"""CPUs of a GPU's bundle (verl 0.9.1 `single_controller/ray/base.py`, `max_colocate_count` of a pool)."""


class NodeError(ValueError):
    """A node that is missing, too small or different; the message is for the person."""


@dataclass(frozen=True)
class Wanted:
    """What a run asks for: `ranks_per_node` bundles on each of `nodes` nodes."""

    nodes: int
    ranks_per_node: int
    gpu: bool
    cpus_per_gpu: int = COLOCATED_CPUS

    @property
    def bundle(self) -> dict[str, float]:
        """Ray's resources of one rank; a rank without a GPU needs one CPU."""
        return {"CPU": self.cpus_per_gpu, "GPU": 1} if self.gpu else {"CPU": 1}

    @property
    def per_node(self) -> dict[str, float]:
        """Ray's resources of one node's ranks."""
        return {name: amount * self.ranks_per_node for name, amount in self.bundle.items()}


@dataclass(frozen=True)
class RayNode:
    """A living node of a Ray cluster."""

    id: str
    name: str
    """Distinct in its cluster."""
    address: str
    total: dict[str, float]
    available: dict[str, float]


@dataclass(frozen=True)
class RankFacts:
    """What a rank's own interpreter says before anything starts."""

    node: str
    torch_version: str
    """Empty where there is no torch."""
    model_seen: bool


def split_ranks(world_size: int, nodes: int) -> int:
    """Return the ranks of each node.

    Raises:
        NodeError: they cannot be the same on all nodes; verl's pools are `[n_gpus_per_node] * nnodes`.
    """
    if nodes < 1 or world_size % nodes:
        raise NodeError(
            f"--nodes {nodes}: {world_size} ranks cannot be spread evenly over them, and verl gives every node the "
            "same number. Choose a world size that the nodes divide."
        )
    return world_size // nodes


def choose_nodes(alive: Iterable[RayNode], wanted: Wanted, cluster: str) -> list[RayNode]:
    """Return the nodes that a run takes, in the order of their addresses, as verl numbers its ranks.

    Raises:
        NodeError: names the nodes that lack something. verl itself waits for ever for such a placement group.
    """
    nodes = sorted(alive, key=lambda node: (node.address, node.name))
    if len(nodes) < wanted.nodes:
        raise NodeError(
            f"the Ray cluster at {cluster} has {len(nodes)} of the {wanted.nodes} nodes asked for "
            f"({', '.join(node.name for node in nodes)}). Start Ray on the other: ray start --address=HEAD:6379"
        )
    lacks = {node.name: _lack(node, wanted) for node in nodes}
    usable = [node for node in nodes if not lacks[node.name]]
    if len(usable) < wanted.nodes:
        raise NodeError(
            f"{'; '.join(filter(None, lacks.values()))}. "
            + ("Ask for fewer ranks." if wanted.nodes > 1 else "Ask for fewer ranks, or spread them over --nodes.")
        )
    return usable[: wanted.nodes]


def _lack(node: RayNode, wanted: Wanted) -> str:
    for name, amount in wanted.per_node.items():
        total, available = node.total.get(name, 0), node.available.get(name, 0)
        each = f"{wanted.bundle[name]:g} for each of its {wanted.ranks_per_node} ranks"
        if total < amount:
            return f"node {node.name} has {total:g} {name}s, asked are {amount:g} ({each})"
        if available < amount:
            return f"node {node.name} has {available:g} of its {total:g} {name}s free, asked are {amount:g} ({each})"
    return ""


def check_facts(facts: Sequence[RankFacts], model: str) -> None:
    """Compare what the ranks found.

    Raises:
        NodeError: names the node whose torch is another one, or that does not see the model.
    """
    first = facts[0]
    for fact in facts:
        if not fact.torch_version:
            raise NodeError(f"node {fact.node} has no torch in the interpreter that runs there. Install it.")
        if fact.torch_version != first.torch_version:
            raise NodeError(
                f"node {fact.node} has torch {fact.torch_version}, node {first.node} has {first.torch_version}: "
                "collectives between them may hang or mix up data. Install the same version on both."
            )
    for fact in facts:
        if not fact.model_seen:
            raise NodeError(
                f"node {fact.node} does not see the model folder {model}. Put it on a file system that all nodes "
                "share, or copy it there under the same path."
            )


def distinct_names(names: dict[str, str]) -> dict[str, str]:
    """Return a name for every node id: the given one, with the id's beginning where several nodes bear it."""
    given = list(names.values())
    return {key: name if given.count(name) == 1 else f"{name}/{key[:8]}" for key, name in names.items()}
