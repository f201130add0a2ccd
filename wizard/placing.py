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
