"""Ready-made mappings of roles to GPU groups, and how mappings are written and read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wizard.memory.prediction import GroupPeak
from wizard.memory.text import peak_text
from wizard.plan import GpuGroup, Plan, Role
from wizard.verl.pools import is_v1


@dataclass(frozen=True)
class Layout:
    """A ready-made mapping."""

    label: str
    apart: tuple[Role, ...] = ()
    """Roles that leave the actor's GPUs, each for some of its own."""


LAYOUTS: Mapping[str, Layout] = {
    "colocated": Layout("colocated: all roles take turns on all GPUs"),
    "rollout": Layout("the rollout on GPUs of its own", ("rollout",)),
    "critic": Layout("the critic on GPUs of its own", ("critic",)),
    "ref": Layout("the reference on GPUs of its own", ("ref",)),
    "critic-ref": Layout("critic and reference on GPUs of their own each", ("critic", "ref")),
    "reward": Layout("the reward model on GPUs of its own", ("reward",)),
}


def laid_out(plan: Plan, name: str) -> tuple[GpuGroup, ...]:
    """Return a ready-made mapping: roles that leave share half of the GPUs of every node, or half of the nodes."""
    apart = LAYOUTS[name].apart
    if "rollout" in apart and "reward" in plan.roles:
        # verl refuses a reward model on the actor's GPUs then.
        apart += ("reward",)
    if not apart:
        return ()
    nodes, gpus = max(1, plan.machine.nodes), max(1, plan.machine.gpus_per_node)
    by_node = gpus <= len(apart)
    each, rest = _shares(nodes if by_node else gpus, len(apart))
    stay = tuple(role for role in plan.roles if role not in apart)
    if by_node:
        return (GpuGroup(stay, rest, gpus), *(GpuGroup((role,), each, gpus) for role in apart))
    return (GpuGroup(stay, nodes, rest), *(GpuGroup((role,), nodes, each) for role in apart))


def _shares(total: int, groups: int) -> tuple[int, int]:
    each = max(1, total // 2 // groups)
    return each, max(1, total - each * groups)


def layout_refusals(plan: Plan) -> dict[str, str]:
    """Return why a ready-made mapping makes no sense for this Plan, by its name; empty where it does."""
    return {name: _refusal(plan, layout.apart) for name, layout in LAYOUTS.items()}


def _refusal(plan: Plan, apart: tuple[Role, ...]) -> str:
    lacking = next((role for role in apart if role not in plan.roles), None)
    if lacking:
        return absence(plan, lacking)
    if "ref" in apart and plan.model.lora_rank:
        return "with LoRA the actor is its own reference"
    if "rollout" in apart and not is_v1(plan):
        return f"not in verl {plan.target.verl_version}"
    needed = len(apart) + 1
    if apart and max(plan.machine.gpus_per_node, plan.machine.nodes) < needed:
        return f"needs {needed} GPUs of a node, or {needed} nodes"
    return ""


def absence(plan: Plan, role: Role) -> str:
    """Return why a Plan does not have a role."""
    if role == "reward":
        return "no reward model is given"
    return f"{plan.algorithm.name} has no critic" if role == "critic" else "without a KL term there is no reference"


def placement_lines(plan: Plan, peaks: tuple[GroupPeak, ...] = ()) -> list[str]:
    """Return which roles run on which GPUs, a line a group: the GPUs of a node where all nodes are alike, and the
    predicted peak of one of its GPUs."""
    machine = plan.machine
    if not machine.gpus_per_node:
        return [f"{' + '.join(plan.roles)}: no GPU planned"]
    groups = plan.placement.groups or (GpuGroup(plan.roles, machine.nodes, machine.gpus_per_node),)
    names = ["+".join(group.roles) for group in groups]
    width = max(map(len, names))
    lines = [
        f"{name:{width}}  {group.nodes} × {group.gpus_per_node} GPUs" for name, group in zip(names, groups, strict=True)
    ]
    taken = sum(group.gpus_per_node for group in groups)
    if taken <= machine.gpus_per_node and all(group.nodes == machine.nodes for group in groups):
        first, total = 0, machine.gpus_per_node
        for index, group in enumerate(groups):
            after = total - first - group.gpus_per_node
            lines[index] += "  [" + "." * first + "#" * group.gpus_per_node + "." * after + "]"
            first += group.gpus_per_node
    if len(peaks) == len(lines):
        lines = [
            f"{line}  {peak_text(peak, machine.gpu_memory_bytes)}" for line, peak in zip(lines, peaks, strict=True)
        ]
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
