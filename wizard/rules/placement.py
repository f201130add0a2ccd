"""Roles on GPU groups: what the Plan's mapping must hold. verl has no key for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wizard.findings import Change, Finding, Fix, Severity, Stage
from wizard.placing import absence, groups_text
from wizard.plan import GpuGroup, Plan, Role
from wizard.rules.registry import RuleInfo
from wizard.verl.pools import is_v1, launched_ranks, own_group

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
              "GRPO and RLOO have no critic; without a KL term there is no reference, and without a reward model the "
              "reward is a function. Their GPUs would stay idle."),
        _info("placement-empty", "a group has GPUs", "A pool of no GPUs starts no workers."),
        _info("placement-node", "a group takes no more GPUs of a node than it has",
              "Ray packs a pool's share of a node strictly onto one node, and waits for ever for one large enough."),
        _info("placement-gpus", "the groups together take no more GPUs than there are",
              "verl adds up its pools, compares with the GPUs Ray has and stops. Pools never overlap."),
        _info("placement-pack", "the groups fit onto the nodes side by side",
              "verl compares sums only. Pools whose sum fits, but which no arrangement on the nodes satisfies, make "
              "Ray wait for ever for a placement group."),
        _info("placement-idle", "every GPU belongs to a group", "verl leaves the others alone.", Severity.WARNING),
        _info("placement-ref", "with LoRA the reference shares the actor's GPUs",
              "The reference is then the actor with its adapters switched off: there is no second model to move."),
        _info("placement-rollout", "a rollout of its own has its GPUs to itself",
              "The engine's servers make their own pools and never pause for another role. Before 0.9, `main_ppo` has "
              "the hybrid engine only, in which the rollout shares the actor's GPUs."),
        _info("placement-reward", "a reward model shares the actor's GPUs, or has its own",
              "verl knows these two (`reward.reward_model.enable_resource_pool`). With a rollout of its own, which "
              "never pauses, the reward model needs GPUs of its own too."),
        _info("placement-launcher", "a critic or reference of its own needs a launcher",
              "The role's pool is code in verl, not configuration: the generated module extends verl's trainer and is "
              "imported through VERL_USE_EXTERNAL_MODULES.", Severity.NOTE),
    )
}  # fmt: skip


def check_placement(plan: Plan) -> Iterator[Finding]:
    """Yield what makes a mapping of roles to GPU groups impossible, or needs a launcher of its own."""
    groups = plan.placement.groups
    if not groups:
        return
    placed = [role for group in groups for role in group.roles]
    for role in sorted({role for role in placed if placed.count(role) > 1}):
        text = f"{role} stands in it {placed.count(role)} times; a role lives on one group of GPUs."
        yield _finding(plan, "placement-twice", text, _moved(plan, role, to=role))
    for role in plan.roles:
        if role not in placed:
            yield _finding(plan, "placement-missing", f"{role} has no GPUs.", _moved(plan, role))
    for role in sorted(set(placed) - set(plan.roles)):
        text = f"{absence(plan, role)}: nothing would run there."
        yield _finding(plan, "placement-extra", text, _removed(plan, role))
    if any(group.nodes < 1 or group.gpus_per_node < 1 for group in groups):
        yield _finding(plan, "placement-empty", "a group without GPUs cannot run a role.")
    yield from _against_machine(plan)
    if "actor" in placed:
        yield from _against_verl(plan)


def _against_machine(plan: Plan) -> Iterator[Finding]:
    groups, machine = plan.placement.groups, plan.machine
    if not machine.world_size:
        return
    widest = max(group.gpus_per_node for group in groups)
    asked = sum(group.nodes * group.gpus_per_node for group in groups)
    if widest > machine.gpus_per_node:
        text = f"a group wants {widest} GPUs of one node, which has {machine.gpus_per_node}. Ray waits for ever."
        yield _finding(plan, "placement-node", text)
    elif asked > machine.world_size:
        text = f"the groups want {asked} GPUs together, and there are {machine.world_size}. Groups do not overlap."
        yield _finding(plan, "placement-gpus", text)
    elif not _packs(plan):
        text = f"the groups' {asked} GPUs cannot be arranged on {machine.nodes} nodes of {machine.gpus_per_node}."
        yield _finding(plan, "placement-pack", f"{text} Ray waits for ever.")
    elif asked < machine.world_size:
        text = f"{machine.world_size - asked} of the {machine.world_size} GPUs are in no group and stay idle."
        yield _finding(plan, "placement-idle", text)


def _packs(plan: Plan) -> bool:
    """Return whether the widest groups first, each on the emptiest nodes, all find room."""
    free = [plan.machine.gpus_per_node] * plan.machine.nodes
    for group in sorted(plan.placement.groups, key=lambda group: group.gpus_per_node, reverse=True):
        free.sort(reverse=True)
        if group.nodes > len(free) or any(room < group.gpus_per_node for room in free[: group.nodes]):
            return False
        free[: group.nodes] = [room - group.gpus_per_node for room in free[: group.nodes]]
    return True


def _against_verl(plan: Plan) -> Iterator[Finding]:
    """Yield what no release can express, what the Plan's cannot, and what takes a launcher."""
    rollout, reward, version = own_group(plan, "rollout"), own_group(plan, "reward"), plan.target.verl_version
    if rollout is not None and not is_v1(plan):
        text = f"verl {version} trains and generates on the same GPUs; a rollout of its own needs 0.9's v1 trainer."
        yield _finding(plan, "placement-rollout", text, _moved(plan, "rollout"))
    elif rollout is not None and len(rollout.roles) > 1:
        others = ", ".join(role for role in rollout.roles if role != "rollout")
        text = f"the engine never pauses for {others}: its servers hold these GPUs all the time."
        yield _finding(plan, "placement-rollout", text, _moved(plan, "rollout"))
    if reward is not None and len(reward.roles) > 1:
        text = "verl puts a reward model on the actor's GPUs or on some of its own, not beside another role."
        yield _finding(plan, "placement-reward", text, _moved(plan, "reward"))
    elif reward is None and rollout is not None and plan.group("reward") is not None:
        text = "a rollout of its own never pauses to lend its memory: verl wants a reward model on GPUs of its own."
        yield _finding(plan, "placement-reward", text)
    moved = launched_ranks(plan)
    if "ref" in moved and plan.model.lora_rank:
        text = f"with model.lora_rank = {plan.model.lora_rank} the reference is the actor without its adapters."
        yield _finding(plan, "placement-ref", text, _moved(plan, "ref"))
    elif moved:
        text = (
            f"verl's configuration cannot move {' and '.join(moved)}; a small launcher module is generated that does."
        )
        yield _finding(plan, "placement-launcher", text)


def _moved(plan: Plan, role: Role, to: Role = "actor") -> Fix:
    """Return the fix that leaves a role nowhere but in the first group of `to`."""
    groups = plan.placement.groups
    home = next((index for index, group in enumerate(groups) if to in group.roles), 0)
    others = [tuple(other for other in group.roles if other != role) for group in groups]
    roles = [(*kept, role) if index == home else kept for index, kept in enumerate(others)]
    label = f"{role} with {' + '.join(others[home])}" if others[home] else f"{role} in one group"
    return _fix(label, tuple(replace(group, roles=own) for group, own in zip(groups, roles, strict=True) if own))


def _removed(plan: Plan, role: Role) -> Fix:
    left = [(group, tuple(other for other in group.roles if other != role)) for group in plan.placement.groups]
    return _fix(f"no GPUs for {role}", tuple(replace(group, roles=roles) for group, roles in left if roles))


def _fix(label: str, groups: tuple[GpuGroup, ...]) -> Fix:
    return Fix(label, (Change(FIELD, groups),))


def _finding(plan: Plan, id: str, message: str, *fixes: Fix) -> Finding:
    info = PLACEMENT_RULES[id]
    offered = (*fixes, COLOCATE) if info.severity is Severity.ERROR else fixes
    value = groups_text(plan.placement.groups)
    return Finding(id, info.severity, FIELD, value, message, info.stage, offered, SOURCE)
