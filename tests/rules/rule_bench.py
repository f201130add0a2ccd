"""A configuration that verl accepts, facts around it, and how a fix is applied to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from wizard.facts import Architecture, Machine
from wizard.findings import Finding, Fix
from wizard.model.catalog import preset
from wizard.rules import Facts, check_config
from wizard.verl.config import Assignment, VerlConfig
from wizard.verl.schema import load_schema

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"
CRITIC = "critic"

GOOD: Mapping[str, Any] = {
    f"{MODEL}.path": "Qwen/Qwen2.5-7B-Instruct",
    f"{MODEL}.use_remove_padding": True,
    f"{MODEL}.enable_gradient_checkpointing": True,
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 64,
    "data.max_prompt_length": 1024,
    "data.max_response_length": 1024,
    "data.filter_overlong_prompts": True,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.strategy": "fsdp2",
    f"{ACTOR}.ppo_mini_batch_size": 32,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{ACTOR}.fsdp_config.use_no_sync_for_gradient_accumulation": False,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.n": 8,
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 8,
    f"{REF}.log_prob_micro_batch_size_per_gpu": 8,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "trainer.logger": ["console"],
}
"""GRPO with a 7B model on eight GPUs."""

DYNAMIC: Mapping[str, Any] = {f"{ACTOR}.use_dynamic_bsz": True}
PPO: Mapping[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "critic.model.path": "Qwen/Qwen2.5-7B-Instruct",
    "critic.model.use_remove_padding": True,
    "critic.model.enable_gradient_checkpointing": True,
    "critic.strategy": "fsdp2",
    "critic.ppo_micro_batch_size_per_gpu": 4,
    "critic.fsdp.use_no_sync_for_gradient_accumulation": False,
}
FSDP1: Mapping[str, Any] = {f"{ACTOR}.strategy": "fsdp"}

GIB = 2**30
MACHINE = Machine(
    nodes=1, gpus_per_node=8, gpu_name="H100", gpu_memory_bytes=80 * GIB, gpu_free_bytes=80 * GIB,
    compute_capability="9.0", interconnect="nvlink", host_memory_bytes=2048 * GIB, host_cpus=96,
)  # fmt: skip
VERSIONS: Mapping[str, str] = {
    "torch": "2.11.0", "transformers": "5.9.0", "tensordict": "0.10.0", "ray": "2.60.0", "numpy": "2.1.0",
    "vllm": "0.24.0", "flash-attn": "2.8.3", "peft": "0.21.2", "TransferQueue": "0.1.10", "liger-kernel": "0.8.2",
}  # fmt: skip


def architecture(model: str = "Qwen/Qwen2.5-7B-Instruct", **changes: Any) -> Architecture:
    found = preset(model)
    assert found is not None
    return dataclasses.replace(found, **changes)


def facts(
    *, model: str = "Qwen/Qwen2.5-7B-Instruct", arch: Mapping[str, Any] | None = None,
    machine: Mapping[str, Any] | None = None, versions: Mapping[str, str] | None = None, visible: str | None = None,
) -> Facts:  # fmt: skip
    return Facts(
        machine=dataclasses.replace(MACHINE, **(machine or {})),
        architecture=architecture(model, **(arch or {})),
        versions={**VERSIONS, **(versions or {})},
        visible_devices=visible,
    )


def config_of(changes: Mapping[str, Any], version: str = "0.9.1", without: tuple[str, ...] = ()) -> VerlConfig:
    values = {key: value for key, value in {**GOOD, **changes}.items() if key not in without}
    return VerlConfig(load_schema(version), [Assignment(key, value, "++") for key, value in values.items()])


def fixed(config: VerlConfig, finding: Finding, fix: Fix) -> VerlConfig:
    """Apply a fix as `check --fix` has to: a key that verl lacks gives way to the one it was meant to be."""
    if finding.id in ("unknown-key", "hydra-refuses"):
        config = config.unset(finding.field)
    entries = list(config.assignments)
    for change in fix.changes:
        plus = change.field[: len(change.field) - len(change.field.lstrip("+"))]
        entries.append(Assignment(change.field.lstrip("+"), change.value, plus or "++"))
    return VerlConfig(config.schema, entries)


def ids(config: VerlConfig, around: Facts) -> set[str]:
    return {finding.id for finding in check_config(config, around)}
