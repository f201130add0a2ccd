"""Run in the target interpreter: verl's own classes make the pools of generated folders, on pretended GPUs.

`python split_pools.py FOLDER…` prints one JSON line a folder: the trainer's class, and for every role the bundles of
each placement group that Ray made, with how many nodes they lie on. The first folder's module is imported by verl
itself, through VERL_USE_EXTERNAL_MODULES.
"""

import importlib
import json
import sys

import ray
import verl  # noqa: F401  imports the first folder's module
from hydra import compose, initialize_config_dir
from ray.cluster_utils import Cluster
from ray.util import placement_group_table, remove_placement_group

MODULE = "verl_wizard_roles"
CPUS, GPUS = 32, 8


def v1_manager(config):
    from verl.trainer.ppo.v1.trainer_base import get_trainer_cls

    trainer = object.__new__(get_trainer_cls(config.trainer.v1.trainer_mode))
    trainer.config = config
    # As PPOTrainerSeparateAsync's constructor, which also wants a data set, sets it.
    trainer._enable_hybrid_replicas = config.actor_rollout_ref.hybrid_engine
    trainer._init_resource_pool_mgr()
    trainer.resource_pool_manager.create_resource_pool()
    return trainer, trainer.resource_pool_manager


def v0_manager(config):
    from verl.trainer.main_ppo_v0 import BaseTaskRunner
    from verl.trainer.ppo import ray_trainer

    runner = BaseTaskRunner()
    runner.add_actor_rollout_worker(config)
    runner.add_critic_worker(config)
    made = ray_trainer.RayPPOTrainer
    # Workers would need GPUs: verl's method ends with its first line.
    made.__mro__[1].init_workers = lambda self: self.resource_pool_manager.create_resource_pool()
    trainer = object.__new__(made)
    trainer.config, trainer.role_worker_mapping = config, runner.role_worker_mapping
    trainer.resource_pool_manager = runner.init_resource_pool_mgr(config)
    trainer.init_workers()
    return trainer, trainer.resource_pool_manager


def main(folders):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": CPUS, "num_gpus": GPUS})
    cluster.add_node(num_cpus=CPUS, num_gpus=GPUS)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    for folder in folders:
        if sys.path[0] != folder:
            sys.path.insert(0, folder)
            sys.modules.pop(MODULE, None)
            importlib.import_module(MODULE)
        with initialize_config_dir(folder, version_base=None):
            config = compose("run")
        trainer, manager = (v1_manager if config.trainer.use_v1 else v0_manager)(config)
        pools = {}
        for role in manager.mapping:
            groups = manager.get_resource_pool(role).get_placement_groups(device_name="cuda")
            at = [set(placement_group_table(group)["bundles_to_node_id"].values()) for group in groups]
            bundles = [group.bundle_specs for group in groups]
            pools[role.name] = [bundles, [len(nodes) for nodes in at], len(set().union(*at))]
        told = {"trainer": type(trainer).__name__, "pools": pools, "gpus": manager.get_n_gpus()}
        if hasattr(trainer, "_make_ref_workers") and folder == folders[0]:
            trainer._make_ref_workers()
            told["ref_workers"] = trainer.ref_policy_wg.world_size
        told["workers"] = sorted(role.name for role in trainer.role_worker_mapping)
        print("POOLS", json.dumps(told), flush=True)
        for pool in manager.resource_pool_dict.values():
            for group in pool.get_placement_groups():
                remove_placement_group(group)


main(sys.argv[1:])
