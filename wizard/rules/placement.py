"""Roles on GPU groups: what the Plan's mapping must hold. verl has no key for it."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.findings import Change, Finding, Fix, Severity, Stage
from wizard.plan import Plan
from wizard.rules.registry import RuleInfo

FIELD = "placement.groups"
SOURCE = "verl 0.9.1 trainer/ppo/v1/trainer_base.py:788-848, single_controller/ray/base.py (ResourcePoolManager)"
COLOCATE = Fix("all roles on all GPUs", (Change(FIELD, ()),))


def _info(id: str, title: str, explanation: str, severity: Severity = Severity.ERROR) -> RuleInfo:
    return RuleInfo(id, title, severity, Stage.TRAINER, (FIELD,), SOURCE, explanation, lambda case: ())


PLACEMENT_RULES = {
    info.id: info
    for info in (
        _info("placement-twice", "a role lives on one group of GPUs",
              "verl maps each role to one resource pool, and pools share no GPU: groups are the same or apart."),
        _info("placement-missing", "every role of the algorithm has GPUs",
              "Without a pool, verl stops when it looks up where the role's workers belong."),
        _info("placement-extra", "only roles of the algorithm are placed",
              "GRPO and RLOO have no critic; without a KL term there is no reference. Their GPUs would stay idle."),
        _info("placement-empty", "a group has GPUs", "A pool of no GPUs starts no workers."),
        _info("placement-node", "a group takes no more GPUs of a node than it has",
              "Ray packs a pool's share of a node strictly onto one node, and waits for ever for one large enough."),
        _info("placement-gpus", "the groups together take no more GPUs than there are",
              "verl adds up its pools, compares with the GPUs Ray has and stops. Pools never overlap."),
        _info("placement-pack", "the groups fit onto the nodes side by side",
              "verl compares sums only. Pools whose sum fits, but which no arrangement on the nodes satisfies, make "
              "Ray wait for ever for a placement group."),
        _info("placement-ref", "actor and reference share their GPUs",
              "verl's worker class holds both (ActorRolloutRefWorker); no key and no small launcher takes them apart."),
        _info("placement-critic", "a critic of its own needs a launcher",
              "The role's pool is code in verl, not configuration: the generated module overrides "
              "`_init_resource_pool_mgr` and registers itself through VERL_USE_EXTERNAL_MODULES.", Severity.NOTE),
    )
}  # fmt: skip


def check_placement(plan: Plan) -> Iterator[Finding]:
    """Yield what makes a mapping of roles to GPU groups impossible, or needs a launcher of its own."""
    groups = plan.placement.groups
    if not groups:
        return
    placed = [role for group in groups for role in group.roles]
    twice = sorted({role for role in placed if placed.count(role) > 1})
    if twice:
        yield _finding("placement-twice", f"{', '.join(twice)} is in two groups; a role lives on one group of GPUs.")
    missing = [role for role in plan.roles if role not in placed]
    if missing:
        yield _finding("placement-missing", f"{', '.join(missing)} has no GPUs.")
    extra = [role for role in placed if role not in plan.roles and role != "reward"]
    if extra:
        yield _finding("placement-extra", f"{plan.algorithm.name} has no {', '.join(extra)}.")
    if any(group.nodes < 1 or group.gpus_per_node < 1 for group in groups):
        yield _finding("placement-empty", "a group without GPUs cannot run a role.")
    yield from _against_machine(plan)
    with_actor = next((group for group in groups if "actor" in group.roles), None)
    if with_actor is not None and "ref" in placed and "ref" not in with_actor.roles:
        yield _finding("placement-ref", "verl's workers hold actor and reference together: the same group.")
    if with_actor is not None and "critic" in placed and "critic" not in with_actor.roles:
        text = "verl's configuration cannot move the critic; a small launcher module is generated that does."
        yield _finding("placement-critic", text)


def _against_machine(plan: Plan) -> Iterator[Finding]:
    groups, machine = plan.placement.groups, plan.machine
    if not machine.world_size:
        return
    widest = max(group.gpus_per_node for group in groups)
    asked = sum(group.nodes * group.gpus_per_node for group in groups)
    if widest > machine.gpus_per_node:
        text = f"a group wants {widest} GPUs of one node, which has {machine.gpus_per_node}. Ray waits for ever."
        yield _finding("placement-node", text)
    elif asked > machine.world_size:
        text = f"the groups want {asked} GPUs together, and there are {machine.world_size}. Groups do not overlap."
        yield _finding("placement-gpus", text)
    elif not _packs(plan):
        text = f"the groups' {asked} GPUs cannot be arranged on {machine.nodes} nodes of {machine.gpus_per_node}."
        yield _finding("placement-pack", f"{text} Ray waits for ever.")


def _packs(plan: Plan) -> bool:
    """Return whether the widest groups first, each on the emptiest nodes, all find room."""
    free = [plan.machine.gpus_per_node] * plan.machine.nodes
    for group in sorted(plan.placement.groups, key=lambda group: group.gpus_per_node, reverse=True):
        free.sort(reverse=True)
        if group.nodes > len(free) or any(room < group.gpus_per_node for room in free[: group.nodes]):
            return False
        free[: group.nodes] = [room - group.gpus_per_node for room in free[: group.nodes]]
    return True


def _finding(id: str, message: str) -> Finding:
    info = PLACEMENT_RULES[id]
    fixes = (COLOCATE,) if info.severity is Severity.ERROR else ()
    return Finding(id, info.severity, FIELD, None, message, info.stage, fixes, SOURCE)
