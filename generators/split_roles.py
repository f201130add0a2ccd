"""The launcher module for a mapping that verl's configuration has no key for: a critic on GPUs of its own.

verl 0.9.1 maps roles to resource pools in code (`trainer/ppo/v1/trainer_base.py`, `_init_resource_pool_mgr`). The
module extends that method. verl imports it wherever it is itself imported, because `VERL_USE_EXTERNAL_MODULES` names it
(`verl/__init__.py`).
"""

from __future__ import annotations

from generators.heading import heading
from wizard.plan import GpuGroup, Plan

MODULE = "verl_wizard_roles"


def critic_group(plan: Plan) -> GpuGroup | None:
    """Return the critic's own group of GPUs; None where it shares the actor's."""
    groups = plan.placement.groups
    return next((group for group in groups if "critic" in group.roles and "actor" not in group.roles), None)


def split_roles_py(plan: Plan, group: GpuGroup) -> str:
    """Return the module that gives the critic `group`."""
    return (
        heading(plan, "verl imports this module (see run.sh); it gives the critic GPUs of its own")
        + f'''"""Extends verl's trainer: the critic gets a resource pool of its own."""

from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

CRITIC_GPUS = {[group.gpus_per_node] * group.nodes}
"""GPUs of each node that the critic spans."""


class SplitCriticTrainer(PPOTrainerSync):
    """PPOTrainerSync with a second pool."""

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
        self.resource_pool_manager.resource_pool_spec["critic_pool"] = list(CRITIC_GPUS)
        self.mapping[Role.Critic] = "critic_pool"


# The mode stays `sync`: verl chooses its replay buffer and batch size by that name.
TRAINER_REGISTRY["sync"] = SplitCriticTrainer
'''
    )


def exports(plan: Plan) -> str:
    """Return the lines of run.sh that make verl import the module, in the driver and in Ray's workers."""
    if critic_group(plan) is None:
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
