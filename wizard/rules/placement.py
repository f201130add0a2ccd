"""Roles on GPU groups: what the Plan's mapping must hold. Not a rule of the configuration: verl has no key for it."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.findings import Change, Finding, Fix, Severity, Stage
from wizard.plan import Plan

FIELD = "placement.groups"
SOURCE = "verl 0.9.1 trainer/ppo/v1/trainer_base.py:788-848, single_controller/ray/base.py (ResourcePoolManager)"
COLOCATE = Fix("all roles on all GPUs", (Change(FIELD, ()),))


def check_placement(plan: Plan) -> Iterator[Finding]:
    """Yield what makes a mapping of roles to GPU groups impossible, or needs a launcher of its own."""
    groups, machine = plan.placement.groups, plan.machine
    if not groups:
        return
    placed = [role for group in groups for role in group.roles]
    twice = sorted({role for role in placed if placed.count(role) > 1})
    if twice:
        yield _error("placement-twice", f"{', '.join(twice)} is in two groups; a role lives on one group of GPUs.")
    missing = [role for role in plan.roles if role not in placed]
    if missing:
        yield _error("placement-missing", f"{', '.join(missing)} has no GPUs.")
    extra = [role for role in placed if role not in plan.roles and role != "reward"]
    if extra:
        yield _error("placement-extra", f"{plan.algorithm.name} has no {', '.join(extra)}.")
    if any(group.nodes < 1 or group.gpus_per_node < 1 for group in groups):
        yield _error("placement-empty", "a group without GPUs cannot run a role.")
    wide = [group for group in groups if machine.gpus_per_node and group.gpus_per_node > machine.gpus_per_node]
    asked = sum(group.nodes * group.gpus_per_node for group in groups)
    if wide:
        text = f"a group wants {wide[0].gpus_per_node} GPUs of one node, which has {machine.gpus_per_node}."
        yield _error("placement-node", f"{text} Ray waits for ever.")
    elif machine.world_size and asked > machine.world_size:
        text = f"the groups want {asked} GPUs together, and there are {machine.world_size}. Groups do not overlap."
        yield _error("placement-gpus", text)
    with_actor = next((group for group in groups if "actor" in group.roles), None)
    if with_actor is not None and "ref" in placed and "ref" not in with_actor.roles:
        yield _error("placement-ref", "verl's workers hold actor and reference together: the same group.")
    if with_actor is not None and "critic" in placed and "critic" not in with_actor.roles:
        text = "verl's configuration cannot move the critic; a small launcher module is generated that does."
        yield Finding("placement-critic", Severity.NOTE, FIELD, None, text, Stage.TRAINER, source=SOURCE)


def _error(id: str, message: str) -> Finding:
    return Finding(id, Severity.ERROR, FIELD, None, message, Stage.TRAINER, (COLOCATE,), SOURCE)
