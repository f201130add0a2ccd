"""What verl asks of Ray, counted from a configuration and asked of verl's, TransferQueue's and Ray's own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from rule_bench import ROLLOUT, config_of

from wizard.facts import Machine
from wizard.plan import Algorithm, GpuGroup, Placement, Plan
from wizard.verl.config import Assignment, VerlConfig
from wizard.verl.export import plan_to_config
from wizard.verl.ray_demand import UNITS, Room, demand_of, demand_of_plan, place
from wizard.verl.schema import load_schema

SEPARATE = {
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 1,
    "trainer.v1.trainer_mode": "separate_async",
    f"{ROLLOUT}.nnodes": 1,
    f"{ROLLOUT}.n_gpus_per_node": 1,
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    "reward.reward_model.enable_resource_pool": True,
    "reward.reward_model.nnodes": 1,
    "reward.reward_model.n_gpus_per_node": 1,
    UNITS: 1,
}
"""Every kind of pool that configuration can make, small."""


def test_releases_count_differently() -> None:
    """0.6 gives a GPU one CPU and has no TransferQueue; the others three (read in their wheels)."""
    sizes = [Assignment("trainer.n_gpus_per_node", 8), Assignment("trainer.nnodes", 2)]
    demands = {v: demand_of(VerlConfig(load_schema(v), sizes)) for v in ("0.6.1", "0.7.1", "0.8.0", "0.9.1")}
    assert {version: demand.gpus for version, demand in demands.items()} == dict.fromkeys(demands, 16)
    assert [demand.cpus for demand in demands.values()] == [16 + 1, 48 + 1, 48 + 1, 48 + 1 + 8]


def test_a_critic_of_its_own_has_a_pool() -> None:
    groups = (GpuGroup(("actor", "rollout", "ref"), 1, 6), GpuGroup(("critic",), 1, 2))
    plan = Plan(algorithm=Algorithm(name="ppo"), machine=Machine(gpus_per_node=8), placement=Placement(groups))
    demand = demand_of_plan(plan, plan_to_config(plan))
    assert {pool.name: pool.gpus for pool in demand.pools} == {"global_pool": 6, "critic_pool": 2}


@pytest.mark.parametrize(
    ("cpus", "left_out"),
    [
        (33, []),
        (32, ["TransferQueue controller"]),
        (31, ["global_pool 0"]),
        (7, ["storage unit 7", "global_pool 0"]),
    ],
)
def test_storage_units_take_their_cpus_first(cpus: int, left_out: list[str]) -> None:
    """Eight GPUs on one node: 24 CPUs of bundles, 8 of storage units, 1 of the controller."""
    missing = place(demand_of(config_of({})), [Room("a", cpus, 8)])
    names = [f"{one.what} {one.number}" for one in missing]
    assert all(any(part in name for name in names) for part in left_out)
    assert bool(missing) == bool(left_out)


def test_a_group_stays_on_one_node() -> None:
    demand = demand_of(config_of({UNITS: 1}))
    [missing] = place(demand, [Room("a", 100, 4), Room("b", 100, 4)])
    assert (missing.what, missing.number, missing.gpus, missing.lacks_gpus) == ("global_pool", 0, 8, True)
    assert [room.gpus for room in missing.left] == [4, 4]


AS_VERL = """
import json, sys
import ray
from hydra import compose, initialize_config_module
config = json.loads(sys.argv[1])
ray.init("local", num_cpus=config["cpus"], num_gpus=config["gpus"], include_dashboard=False,
         log_to_driver=False, logging_level="ERROR")
with initialize_config_module("verl.trainer.config", version_base=None):
    cfg = compose("ppo_trainer", config["overrides"])
import transfer_queue
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls
from verl.workers.rollout import replica

class Replica(replica.RolloutReplica):
    async def launch_servers(self):
        pass

class Workers:
    workers = ()
    def __init__(self, resource_pool, bin_pack, **more):
        resource_pool.get_placement_groups(strategy="STRICT_PACK" if bin_pack else "PACK")

replica.RayWorkerGroup = Workers
transfer_queue.init(cfg.transfer_queue)
trainer = object.__new__(get_trainer_cls(cfg.trainer.v1.trainer_mode))
trainer.config = cfg
trainer._init_resource_pool_mgr()
trainer.resource_pool_manager.create_resource_pool()
pools = dict(trainer.resource_pool_manager.resource_pool_dict)
for pool in pools.values():
    pool.get_placement_groups()
import asyncio
rollout = cfg.actor_rollout_ref.rollout
for number in range(rollout.nnodes * rollout.n_gpus_per_node):
    one = Replica(number, rollout, None, gpus_per_node=rollout.n_gpus_per_node)
    asyncio.run(one.init_standalone())
    pools[next(iter(one.resource_pool.name_prefix.split()))] = one.resource_pool
left = ray.available_resources()
print("ASKED", json.dumps({
    "pools": {name: [pool.store, pool.max_colocate_count] for name, pool in pools.items()},
    "left": [left.get("CPU", 0), left.get("GPU", 0)],
}))
"""


@pytest.mark.verl
@pytest.mark.slow
def test_verl_takes_exactly_what_is_counted() -> None:
    """verl's trainer, its replicas and TransferQueue start on one Ray node with the CPUs and GPUs counted, and leave
    nothing over: one less, and something would wait."""
    pytest.importorskip("verl", reason="verl is not installed in this interpreter")
    pytest.importorskip("transfer_queue", reason="TransferQueue is not installed in this interpreter")
    demand = demand_of(config_of(SEPARATE))
    assert place(demand, [Room("here", demand.cpus, demand.gpus)]) == ()
    asked = {
        "cpus": demand.cpus,
        "gpus": demand.gpus,
        "overrides": [f"{key}={value}" for key, value in SEPARATE.items()] + [f"{ROLLOUT}.name=vllm"],
    }
    done = subprocess.run(
        [sys.executable, "-c", AS_VERL, json.dumps(asked)], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
    )  # fmt: skip
    assert "ASKED" in done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout.rpartition("ASKED ")[2])
    assert found["pools"] == {
        pool.name: [[pool.gpus_per_node] * pool.nodes, pool.cpus_per_gpu] for pool in demand.pools
    }
    assert found["left"] == [0, 0]
