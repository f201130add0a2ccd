"""Which of the Plan's GPU groups verl's configuration makes a pool of, and which a launcher has to.

Every release maps roles to pools in code: all of them to `global_pool` (`trainer.nnodes` × `trainer.n_gpus_per_node`),
a reward model to `reward_pool` where `enable_resource_pool` says so. Since 0.9 a rollout of its own has another
(`trainer/ppo/v1/trainer_separate_async.py`). Critic and reference are only looked up in their pool, so that code can
move them: 0.9.1 `trainer/ppo/v1/trainer_base.py` (`_init_resource_pool_mgr`), 0.6.1 to 0.8.0
`trainer/ppo/ray_trainer.py` (`init_workers`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from wizard.plan import GpuGroup, Placement, Plan, Role
from wizard.verl.config import VerlConfig
from wizard.verl.keys import ROLLOUT
from wizard.verl.schema import load_schema
from wizard.verl.versions import to_version

LAUNCHED: tuple[Role, ...] = ("critic", "ref")
"""Roles that a launcher can give a pool of their own."""


def own_group(plan: Plan, role: Role) -> GpuGroup | None:
    """Return the group of GPUs a role has without the actor; None where it shares the actor's."""
    group = plan.group(role)
    return group if group is not None and "actor" not in group.roles else None


def launched_groups(plan: Plan) -> tuple[GpuGroup, ...]:
    """Return the groups without the actor that a critic or a reference lives on: a launcher makes pools of them."""
    return tuple(
        group
        for group in plan.placement.groups
        if "actor" not in group.roles and any(role in group.roles and role in plan.roles for role in LAUNCHED)
    )


def launched_pool(group: GpuGroup) -> str:
    """Return the name of the pool that a launcher makes of a group."""
    return "_".join(role for role in group.roles if role in LAUNCHED) + "_pool"


def launched_ranks(plan: Plan) -> Mapping[Role, int]:
    """Return the ranks of each role that a launcher moves."""
    return {role: plan.ranks(role) for role in LAUNCHED if own_group(plan, role) in launched_groups(plan)}


def is_v1(plan: Plan) -> bool:
    """Return whether verl's v1 trainer runs the Plan: since 0.9, unless `trainer.use_v1` is switched off."""
    return load_schema(plan.target.verl_version).minor >= (0, 9) and (
        dict(plan.extra_overrides).get("trainer.use_v1") is not False
    )


def with_pools(plan: Plan, config: VerlConfig) -> Plan:
    """Return the Plan with a group for each pool that the configuration makes; its machine then holds them all."""
    blocks: dict[Role, str] = {}
    if config.get("trainer.v1.trainer_mode") == "separate_async" and not config.get("actor_rollout_ref.hybrid_engine"):
        blocks["rollout"] = ROLLOUT
    reward = to_version("reward.reward_model", config.schema.minor)
    if config.get(f"{reward}.enable") is True and config.get(f"{reward}.enable_resource_pool") is True:
        blocks["reward"] = reward
    sizes = {role: (config.get(f"{at}.nnodes"), config.get(f"{at}.n_gpus_per_node")) for role, at in blocks.items()}
    if not sizes or not all(isinstance(number, int) and number > 0 for size in sizes.values() for number in size):
        return plan
    stay = tuple(role for role in plan.roles if role not in sizes)
    apart = tuple(GpuGroup((role,), nodes, gpus) for role, (nodes, gpus) in sizes.items())
    groups = (GpuGroup(stay, plan.machine.nodes, plan.machine.gpus_per_node), *apart)
    nodes, gpus = [group.nodes for group in groups], [group.gpus_per_node for group in groups]
    # Groups over equally many nodes lie side by side on each; others each have nodes of their own.
    whole = (nodes[0], sum(gpus)) if len(set(nodes)) == 1 else (sum(nodes), max(gpus))
    machine = dataclasses.replace(plan.machine, nodes=whole[0], gpus_per_node=whole[1])
    return dataclasses.replace(plan, machine=machine, placement=Placement(groups))
