"""The launcher module for mappings that verl's configuration has no key for: critic or reference on GPUs of their own.

verl maps roles to resource pools in code, which the module extends: since 0.9 the v1 trainer's
`_init_resource_pool_mgr` (0.9.1 `trainer/ppo/v1/trainer_base.py`), before, and with `trainer.use_v1=false`,
`RayPPOTrainer.init_workers`, which gets the mapping from `main_ppo` (0.6.1 to 0.8.0 `trainer/ppo/ray_trainer.py`). verl
imports the module wherever it is itself imported, because `VERL_USE_EXTERNAL_MODULES` names it (`verl/__init__.py`).
"""

from __future__ import annotations

from generators.heading import heading
from wizard.plan import GpuGroup, Plan
from wizard.verl.pools import is_v1, launched_groups, launched_pool, launched_ranks, own_group

MODULE = "verl_wizard_roles"
VERL_ROLES = {"critic": "Critic", "ref": "RefPolicy"}
"""The Plan's roles as verl's `Role` calls them."""


def split_roles_py(plan: Plan) -> str:
    """Return the module that gives roles pools of their own; empty where verl's configuration is enough."""
    groups = launched_groups(plan)
    if not groups:
        return ""
    separate = own_group(plan, "rollout") is not None
    splits_ref = "ref" in launched_ranks(plan)
    if not is_v1(plan):
        body = _before_v1(groups, splits_ref=splits_ref)
    elif separate:
        # Without a rollout beside it, verl's trainer makes a reference of its own.
        body = _v1("PPOTrainerSeparateAsync", "separate_async", groups, splits_ref=False)
    else:
        body = _v1("PPOTrainerSync", "sync", groups, splits_ref=splits_ref)
    roles = " and ".join(launched_ranks(plan))
    return heading(plan, f"verl imports this module (see run.sh); it gives GPUs of their own to: {roles}") + body


def _tables(groups: tuple[GpuGroup, ...]) -> str:
    pools = "".join(f'    "{launched_pool(group)}": {[group.gpus_per_node] * group.nodes},\n' for group in groups)
    mapping = "".join(
        f'    Role.{VERL_ROLES[role]}: "{launched_pool(group)}",\n'
        for group in groups
        for role in group.roles
        if role in VERL_ROLES
    )
    return f'''POOLS = {{
{pools}}}
"""Pools beside verl's own: the GPUs of each node that one spans."""
MAPPING = {{
{mapping}}}
'''


def _v1(base: str, mode: str, groups: tuple[GpuGroup, ...], *, splits_ref: bool) -> str:
    workers = "RayClassWithInitArgs, RayWorkerGroup, create_colocated_worker_cls"
    imports = f"from verl.single_controller.ray import {workers}\n" if splits_ref else ""
    return f'''"""Extends verl's trainer: roles with resource pools of their own."""

{imports}from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import {base}
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

{_tables(groups)}

class SplitRolesTrainer({base}):
    """{base} with further pools."""

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
{_UNFUSE_V1 if splits_ref else ""}        self.resource_pool_manager.resource_pool_spec.update(POOLS)
        # The manager holds the same dictionary.
        self.mapping.update(MAPPING)
{_SET_UP_REF if splits_ref else ""}

# The mode keeps its name: verl chooses its replay buffer and batch size by it.
TRAINER_REGISTRY["{mode}"] = SplitRolesTrainer
'''


_UNFUSE_V1 = """\
        # verl fuses the reference with the actor; the same class is also the worker of either alone.
        worker = self.role_worker_mapping.pop(Role.ActorRolloutRef)
        self.role_worker_mapping.update({Role.ActorRollout: worker, Role.RefPolicy: worker})
        self.mapping[Role.ActorRollout] = self.mapping.pop(Role.ActorRolloutRef)
"""
_SET_UP_REF = '''
    def _setup(self):
        super()._setup()
        self._make_ref_workers()
        self.ref_policy_wg.init_model()

    def _make_ref_workers(self):
        """As PPOTrainer._setup does it where no rollout shares the actor's GPUs."""
        name = str(Role.RefPolicy)
        worker = RayClassWithInitArgs(
            cls=self.role_worker_mapping[Role.RefPolicy], config=self.config.actor_rollout_ref, role=name
        )
        group = RayWorkerGroup(
            resource_pool=self.resource_pool_manager.get_resource_pool(Role.RefPolicy),
            ray_cls_with_init=create_colocated_worker_cls(class_dict={name: worker}),
            device_name=self.config.trainer.device,
        )
        self.ref_policy_wg = group.spawn(prefix_set=[name])[name]
'''


def _before_v1(groups: tuple[GpuGroup, ...], *, splits_ref: bool) -> str:
    return f'''"""Extends verl's trainer: roles with resource pools of their own."""

from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, Role

{_tables(groups)}

class SplitRolesTrainer(RayPPOTrainer):
    """RayPPOTrainer with further pools."""

    def init_workers(self):
        mapping = self.resource_pool_manager.mapping
{_UNFUSE_BEFORE_V1 if splits_ref else ""}        self.resource_pool_manager.resource_pool_spec.update(POOLS)
        mapping.update(MAPPING)
        super().init_workers()


ray_trainer.RayPPOTrainer = SplitRolesTrainer
'''


_UNFUSE_BEFORE_V1 = """\
        fused = getattr(Role, "ActorRolloutRef", None)
        if fused in mapping:
            # The model engine's worker holds both; the same class is also the worker of either alone.
            worker = self.role_worker_mapping.pop(fused)
            self.role_worker_mapping.update({Role.ActorRollout: worker, Role.RefPolicy: worker})
            mapping[Role.ActorRollout] = mapping.pop(fused)
"""


def exports(plan: Plan) -> str:
    """Return the lines of run.sh that make verl import the module, in the driver and in Ray's workers."""
    if not launched_groups(plan):
        return ""
    return f"""
export VERL_USE_EXTERNAL_MODULES={MODULE}
export PYTHONPATH="$here${{PYTHONPATH:+:$PYTHONPATH}}"
# Workers of a Ray cluster that is already running inherit nothing from this shell. Hydra wants quotes escaped.
escaped=${{PYTHONPATH//\\'/\\\\\\'}}
set -- \\
  "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES={MODULE}" \\
  "+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH='$escaped'" \\
  "$@"
"""
