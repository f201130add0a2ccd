"""Writes a Plan as verl's keys: only what differs from the defaults of the release it is written for."""

from __future__ import annotations

from typing import Any

from wizard.plan import Plan
from wizard.verl.config import Assignment, VerlConfig
from wizard.verl.keys import ROLLOUT, exported_keys
from wizard.verl.pools import is_v1, own_group
from wizard.verl.schema import Schema, load_schema
from wizard.verl.versions import from_version, translated


def plan_to_overrides(plan: Plan, schema: Schema | None = None) -> dict[str, Any]:
    """Return `{verl key: value}` for everything in the Plan that differs from the target verl's defaults.

    A handful of keys is written although equal, because verl's default is a trap (`tensor_model_parallel_size`) or
    differs between its YAML and its dataclass (`use_no_sync_for_gradient_accumulation`).
    """
    schema = schema or load_schema(plan.target.verl_version)
    config = VerlConfig(schema, (Assignment(f"{ROLLOUT}.name", plan.rollout.engine, "++"),))
    result: dict[str, Any] = {}
    for key, (value, explicit, absent) in _wanted(plan, schema).items():
        default = config.get(key) if key in schema else absent
        if explicit or not equal(default, value):
            result[key] = value
            config = config.set({key: value})
    for key, value in plan.extra_overrides:
        result[key] = value
    return result


def _wanted(plan: Plan, schema: Schema) -> dict[str, tuple[Any, bool, Any]]:
    wanted = {
        entry.key: (entry.to_verl(plan), entry.explicit, entry.absent)
        for entry in exported_keys()
        if entry.applies(plan)
    }
    wanted.update({key: (value, True, None) for key, (value, _) in _placement(plan).items()})
    return translated(wanted, schema)


def equal(default: Any, value: Any) -> bool:
    """Return whether two values are the same to verl: a list is as good as a tuple, but `1` is not `true`."""
    if isinstance(default, (list, tuple)) and isinstance(value, (list, tuple)):
        return list(default) == list(value)
    return bool(default == value) and isinstance(default, bool) == isinstance(value, bool)


def _placement(plan: Plan) -> dict[str, tuple[Any, str]]:
    """Return the keys of the separations verl's configuration can express, each with its reason."""
    keys = _of("the rollout engine has GPUs of its own", _rollout_pool(plan))
    reward = own_group(plan, "reward")
    if reward is not None:
        pool = {"enable_resource_pool": True, "nnodes": reward.nodes, "n_gpus_per_node": reward.gpus_per_node}
        named = {f"reward.reward_model.{name}": value for name, value in pool.items()}
        keys |= _of("the reward model has GPUs of its own", named)
    return keys


def _of(reason: str, keys: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    return {key: (value, reason) for key, value in keys.items()}


def _rollout_pool(plan: Plan) -> dict[str, Any]:
    """Return what verl 0.9.1 `trainer/ppo/v1/trainer_separate_async.py` demands for a rollout pool of its own."""
    pool = own_group(plan, "rollout")
    if pool is None or not is_v1(plan):
        return {}
    keys: dict[str, Any] = {
        "trainer.v1.trainer_mode": "separate_async",
        "actor_rollout_ref.hybrid_engine": False,
        f"{ROLLOUT}.nnodes": pool.nodes,
        f"{ROLLOUT}.n_gpus_per_node": pool.gpus_per_node,
        f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
    }
    steps, rest = divmod(plan.batches.train_batch_size, plan.batches.mini_batch_size)
    if not rest:
        keys["trainer.v1.separate_async.parameter_sync_step"] = steps
    return keys


def plan_to_config(plan: Plan, schema: Schema | None = None) -> VerlConfig:
    """Return the configuration the Plan's files compose to in the target verl."""
    schema = schema or load_schema(plan.target.verl_version)
    entries = (Assignment(key, value) for key, value in plan_to_overrides(plan, schema).items())
    return VerlConfig(schema, entries, source="Plan")


def plan_field(verl_key: str, minor: tuple[int, int] = (0, 9)) -> str | None:
    """Return the Plan path that decides a verl key, None where the Plan has no field for it."""
    key = from_version(verl_key, minor)
    return next((entry.path or None for entry in exported_keys() if entry.key == key), None)


def reason_of(verl_key: str, plan: Plan) -> str:
    """Return why a key stands in the generated file, as a comment of one line."""
    key = from_version(verl_key, load_schema(plan.target.verl_version).minor)
    for entry in exported_keys():
        if entry.key == key:
            return entry.reason
    return _placement(plan).get(key, (None, "taken over from the file you opened"))[1]
