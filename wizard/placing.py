"""Ready-made mappings of roles to GPU groups. Pure."""

from __future__ import annotations

from wizard.plan import GpuGroup, Plan, Role


def colocated() -> tuple[GpuGroup, ...]:
    """Return the default: all roles on all GPUs."""
    return ()


def separate_rollout(plan: Plan) -> tuple[GpuGroup, ...]:
    """Return half of the GPUs of every node for the rollout, the rest for training."""
    roles: tuple[Role, ...] = tuple(role for role in plan.roles if role != "rollout")
    return _split(plan, roles, ("rollout",))


def separate_critic(plan: Plan) -> tuple[GpuGroup, ...]:
    """Return half of the GPUs of every node for the critic, the rest for all else."""
    roles: tuple[Role, ...] = tuple(role for role in plan.roles if role != "critic")
    return _split(plan, roles, ("critic",))


def _split(plan: Plan, first: tuple[Role, ...], second: tuple[Role, ...]) -> tuple[GpuGroup, ...]:
    nodes, gpus = max(1, plan.machine.nodes), plan.machine.gpus_per_node
    if gpus >= 2:
        half = gpus // 2
        return (GpuGroup(first, nodes, gpus - half), GpuGroup(second, nodes, half))
    half = max(1, nodes // 2)
    return (GpuGroup(first, max(1, nodes - half), max(1, gpus)), GpuGroup(second, half, max(1, gpus)))


def layout_refusals(plan: Plan) -> dict[str, str]:
    """Return why a ready-made mapping makes no sense for this Plan, by its name; empty where it does."""
    few = "" if plan.machine.world_size >= 2 else "needs two GPUs or more"
    return {
        "colocated": "",
        "rollout": few,
        "critic": few if "critic" in plan.roles else f"{plan.algorithm.name} has no critic",
    }


def placement_lines(plan: Plan) -> list[str]:
    """Return which roles run on which GPUs: a line a group, with the GPUs of a node where all nodes are alike."""
    machine = plan.machine
    if not machine.gpus_per_node:
        return [f"{' + '.join(plan.roles)}: no GPU planned"]
    groups = plan.placement.groups or (GpuGroup(plan.roles, machine.nodes, machine.gpus_per_node),)
    names = [" + ".join(group.roles) for group in groups]
    width = max(map(len, names))
    lines = [
        f"{name:{width}}  {group.nodes} × {group.gpus_per_node} GPUs" for name, group in zip(names, groups, strict=True)
    ]
    taken = sum(group.gpus_per_node for group in groups)
    if taken > machine.gpus_per_node or any(group.nodes != machine.nodes for group in groups):
        return lines
    first, total = 0, machine.gpus_per_node
    for index, group in enumerate(groups):
        after = total - first - group.gpus_per_node
        lines[index] += "  [" + "." * first + "#" * group.gpus_per_node + "." * after + "]"
        first += group.gpus_per_node
    return lines


def groups_text(groups: tuple[GpuGroup, ...]) -> str:
    """Return groups as they are typed: `actor+ref+rollout=1x6; critic=1x2`."""
    return "; ".join(f"{'+'.join(group.roles)}={group.nodes}x{group.gpus_per_node}" for group in groups)


class PlacementError(ValueError):
    """A mapping that cannot be read; the message is for the person."""


ROLES = ("actor", "rollout", "ref", "critic", "reward")
FORM = "actor+ref+rollout=1x6; critic=1x2"


def parse_groups(text: str) -> tuple[GpuGroup, ...]:
    """Read groups typed as `roles=NODESxGPUS`, separated by semicolons; empty text colocates.

    Raises:
        PlacementError: names the part that cannot be read.
    """
    groups: list[GpuGroup] = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        names, sign, size = part.partition("=")
        roles = tuple(name.strip() for name in names.split("+"))
        unknown = [name for name in roles if name not in ROLES]
        nodes, cross, gpus = size.strip().partition("x")
        if not sign or not cross or not nodes.strip().isdigit() or not gpus.strip().isdigit():
            raise PlacementError(f"{part!r}: write roles=NODESxGPUS, as in {FORM}")
        if unknown:
            raise PlacementError(f"{unknown[0]!r} is no role; roles are {', '.join(ROLES)}")
        groups.append(GpuGroup(roles, int(nodes), int(gpus)))  # type: ignore[arg-type]
    return tuple(groups)
