"""One configuration per rule that breaks it: what is changed against the good one, and what is to be found.

Expected fields, severities and stages are read off verl 0.9.1's source at the place the rule names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rule_bench import ACTOR, DYNAMIC, FSDP1, GIB, MODEL, PPO, REF, ROLLOUT


@dataclass(frozen=True)
class Broken:
    id: str
    changes: Mapping[str, Any]
    field: str
    severity: str
    stage: str
    around: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `facts`."""
    without: tuple[str, ...] = ()
    fixable: bool = True
    note: str = ""


FSDP = f"{ACTOR}.fsdp_config"
CLASSES = f"{FSDP}.wrap_policy.transformer_layer_cls_to_wrap"
SIZE = f"{FSDP}.wrap_policy.min_num_params"
SP = f"{FSDP}.ulysses_sequence_parallel_size"
ATTENTION = f"{MODEL}.override_config.attn_implementation"
TP = f"{ROLLOUT}.tensor_model_parallel_size"
SEPARATE = {
    "trainer.v1.trainer_mode": "separate_async", f"{ROLLOUT}.nnodes": 1, f"{ROLLOUT}.n_gpus_per_node": 4,
    f"{ROLLOUT}.checkpoint_engine.backend": "nccl", "trainer.v1.separate_async.parameter_sync_step": 2,
    "trainer.n_gpus_per_node": 4,
}  # fmt: skip
LORA = {f"{MODEL}.lora_rank": 32}

BROKEN = (
    # batches
    Broken(
        "train-batch-divisible",
        {"data.train_batch_size": 65, f"{ROLLOUT}.n": 1},
        "data.train_batch_size",
        "error",
        "driver",
    ),
    Broken(
        "train-batch-divisible",
        {**DYNAMIC, "data.train_batch_size": 65, f"{ROLLOUT}.n": 1},
        "data.train_batch_size",
        "warning",
        "silent",
        note="dynamic",
    ),
    Broken(
        "mini-batch-larger", {f"{ACTOR}.ppo_mini_batch_size": 128}, f"{ACTOR}.ppo_mini_batch_size", "error", "driver"
    ),
    Broken(
        "mini-batch-larger",
        {**DYNAMIC, f"{ACTOR}.ppo_mini_batch_size": 128},
        f"{ACTOR}.ppo_mini_batch_size",
        "warning",
        "silent",
        note="dynamic",
    ),
    Broken(
        "mini-batch-larger",
        {**PPO, "critic.ppo_mini_batch_size": 128},
        "critic.ppo_mini_batch_size",
        "error",
        "driver",
        note="critic",
    ),
    Broken(
        "mini-batch-divisible",
        {f"{ACTOR}.ppo_mini_batch_size": 4, f"{ROLLOUT}.n": 1, "data.train_batch_size": 64},
        f"{ACTOR}.ppo_mini_batch_size",
        "error",
        "first-step",
    ),
    Broken(
        "micro-batch-divisible",
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 5},
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        "error",
        "first-step",
    ),
    Broken(
        "micro-batch-divisible",
        {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 5},
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        "warning",
        "first-step",
        {"machine": {"gpus_per_node": 0}},
        ("trainer.n_gpus_per_node",),
        note="default GPUs",
    ),
    Broken(
        "log-prob-micro-divisible",
        {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 7},
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        "error",
        "first-step",
    ),
    Broken(
        "log-prob-micro-divisible",
        {f"{REF}.log_prob_micro_batch_size_per_gpu": 7},
        f"{REF}.log_prob_micro_batch_size_per_gpu",
        "error",
        "first-step",
        note="ref",
    ),
    Broken(
        "micro-batch-unset",
        {},
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        "error",
        "driver",
        without=(f"{ACTOR}.ppo_micro_batch_size_per_gpu",),
    ),
    Broken(
        "micro-batch-unset",
        {f"{REF}.log_prob_micro_batch_size": 64},
        f"{REF}.log_prob_micro_batch_size",
        "error",
        "driver",
        note="both",
    ),
    Broken(
        "micro-batch-unset",
        {**PPO, "critic.ppo_micro_batch_size": 32},
        "critic.ppo_micro_batch_size",
        "error",
        "driver",
        without=("critic.ppo_micro_batch_size_per_gpu",),
        note="critic's total counts as both",
    ),
    Broken(
        "micro-batch-total",
        {f"{ACTOR}.ppo_micro_batch_size": 32},
        f"{ACTOR}.ppo_micro_batch_size",
        "error",
        "workers",
        without=(f"{ACTOR}.ppo_micro_batch_size_per_gpu",),
    ),
    Broken("train-mini-multiple", {"data.train_batch_size": 72}, "data.train_batch_size", "warning", "silent"),
    Broken(
        "train-mini-multiple",
        {"data.train_batch_size": 72, "trainer.use_v1": False},
        "data.train_batch_size",
        "error",
        "first-step",
        note="v0",
    ),
    Broken(
        "token-cap",
        {**DYNAMIC, f"{ACTOR}.ppo_max_token_len_per_gpu": 1500},
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        "error",
        "first-step",
    ),
    Broken(
        "token-cap",
        {**DYNAMIC, f"{REF}.log_prob_max_token_len_per_gpu": 1500},
        f"{REF}.log_prob_max_token_len_per_gpu",
        "error",
        "first-step",
        note="ref",
    ),
    Broken(
        "token-cap-unset",
        {**DYNAMIC, f"{ROLLOUT}.log_prob_max_token_len_per_gpu": None},
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        "error",
        "workers",
    ),
    Broken(
        "critic-token-cap",
        {**PPO, "critic.ppo_infer_max_token_len_per_gpu": 1500},
        "critic.ppo_infer_max_token_len_per_gpu",
        "error",
        "first-step",
    ),
    Broken(
        "critic-dead-sizes",
        {**PPO, "critic.ppo_max_token_len_per_gpu": 24576},
        "critic.ppo_max_token_len_per_gpu",
        "warning",
        "silent",
    ),
    Broken(
        "dynamic-switches-differ",
        {**DYNAMIC, f"{ROLLOUT}.log_prob_use_dynamic_bsz": False},
        f"{ROLLOUT}.log_prob_use_dynamic_bsz",
        "error",
        "workers",
    ),
    # sharding, sequence parallelism
    Broken("fsdp-size", {f"{FSDP}.fsdp_size": 3}, f"{FSDP}.fsdp_size", "error", "workers"),
    Broken("fsdp-size", {f"{FSDP}.fsdp_size": 0}, f"{FSDP}.fsdp_size", "error", "workers", note="zero"),
    Broken("hsdp", {f"{FSDP}.fsdp_size": 4}, f"{FSDP}.fsdp_size", "note", "silent"),
    Broken("ulysses-world", {SP: 16}, SP, "error", "workers"),
    Broken("ulysses-world", {SP: 0}, SP, "error", "workers", note="zero"),
    Broken("ulysses-heads", {SP: 8}, SP, "error", "workers", note="28 heads"),
    Broken(
        "ulysses-remove-padding",
        {SP: 2, f"{MODEL}.use_remove_padding": False},
        f"{MODEL}.use_remove_padding",
        "error",
        "workers",
    ),
    Broken(
        "ulysses-remove-padding",
        {f"{ACTOR}.ulysses_sequence_parallel_size": 2, f"{MODEL}.use_remove_padding": False},
        f"{MODEL}.use_remove_padding",
        "error",
        "driver",
        note="the key verl's check sees",
    ),
    Broken("ulysses-attention", {SP: 2, ATTENTION: "sdpa"}, ATTENTION, "error", "silent"),
    Broken("ulysses-ref-differs", {SP: 2}, f"{REF}.fsdp_config.ulysses_sequence_parallel_size", "warning", "silent"),
    Broken(
        "ulysses-critic-dead-key",
        {**PPO, "critic.ulysses_sequence_parallel_size": 2},
        "critic.ulysses_sequence_parallel_size",
        "warning",
        "silent",
    ),
    Broken("ulysses-linear-attention", {SP: 2}, SP, "warning", "silent", {"arch": {"model_type": "qwen3_5"}}),
    # wrap policies
    Broken("wrap-class-missing", {**FSDP1, CLASSES: ["qwen2decoderlayer"]}, CLASSES, "error", "workers"),
    Broken(
        "wrap-class-missing",
        {CLASSES: ["Qwen2DecoderLayer", "Qwen2VisionLayer"]},
        CLASSES,
        "warning",
        "silent",
        note="one of two",
    ),
    Broken(
        "wrap-class-missing",
        {CLASSES: ["Qwen2DecoderLayr"], SIZE: 1000},
        CLASSES,
        "error",
        "silent",
        note="fsdp2 with a size",
    ),
    Broken("wrap-class-form", {CLASSES: "Qwen2DecoderLayer"}, CLASSES, "error", "workers"),
    Broken("wrap-class-form", {CLASSES: []}, CLASSES, "error", "workers", note="empty"),
    Broken("wrap-class-form", {**FSDP1, CLASSES: None}, CLASSES, "error", "silent", note="null"),
    Broken("wrap-class-form", {CLASSES: None}, CLASSES, "error", "workers", note="null, fsdp2"),
    Broken("wrap-no-default", FSDP1, CLASSES, "error", "silent", {"arch": {"no_split_modules": None}}),
    Broken("wrap-no-default", {}, CLASSES, "error", "workers", {"arch": {"no_split_modules": None}}, note="fsdp2"),
    Broken("wrap-nested", {CLASSES: ["Qwen2DecoderLayer", "Qwen2MLP"]}, CLASSES, "error", "workers"),
    Broken("wrap-size-wins", {**FSDP1, CLASSES: ["Qwen2DecoderLayer"], SIZE: 100_000_000}, SIZE, "warning", "silent"),
    Broken("wrap-size-ignored", {SIZE: 100_000_000}, SIZE, "warning", "silent"),
    Broken("wrap-embedding", {CLASSES: ["Qwen2DecoderLayer", "Embedding"]}, CLASSES, "warning", "first-step"),
    Broken(
        "wrap-one-unit",
        {**FSDP1, f"{FSDP}.wrap_policy.disable": True},
        f"{FSDP}.wrap_policy.disable",
        "warning",
        "silent",
    ),
    Broken("lora-size-wrap", {**FSDP1, **LORA, SIZE: 1000}, SIZE, "error", "workers"),
    # precision
    Broken("dtype-unknown", {f"{FSDP}.model_dtype": "bf32"}, f"{FSDP}.model_dtype", "error", "workers"),
    Broken(
        "reduce-dtype",
        {f"{FSDP}.mixed_precision.reduce_dtype": "bf16"},
        f"{FSDP}.mixed_precision.reduce_dtype",
        "error",
        "silent",
    ),
    Broken(
        "reduce-dtype",
        {f"{FSDP}.mixed_precision.reduce_dtype": "bf16", f"{FSDP}.model_dtype": "bfloat16"},
        f"{FSDP}.mixed_precision.reduce_dtype",
        "warning",
        "silent",
        note="bf16 all through",
    ),
    Broken("master-dtype", {f"{FSDP}.model_dtype": "bf16"}, f"{FSDP}.model_dtype", "warning", "silent"),
    Broken(
        "fp16-range",
        {f"{FSDP}.mixed_precision.param_dtype": "fp16"},
        f"{FSDP}.mixed_precision.param_dtype",
        "warning",
        "silent",
    ),
    Broken(
        "bf16-compute-capability",
        {ATTENTION: "sdpa"},
        f"{FSDP}.mixed_precision.param_dtype",
        "warning",
        "silent",
        {"machine": {"compute_capability": "7.0"}},
    ),
    Broken(
        "buffer-dtype-fsdp2",
        {f"{FSDP}.mixed_precision.buffer_dtype": "bf16"},
        f"{FSDP}.mixed_precision.buffer_dtype",
        "note",
        "silent",
        fixable=False,
    ),
    Broken("dead-dtype-key", {f"{FSDP}.dtype": "float16"}, f"{FSDP}.dtype", "warning", "silent"),
    Broken(
        "cast-forward-inputs",
        {f"{FSDP}.mixed_precision.cast_forward_inputs": True},
        f"{FSDP}.mixed_precision.cast_forward_inputs",
        "note",
        "silent",
        fixable=False,
    ),
    Broken("fp16-reduce-scaler", {f"{FSDP}.model_dtype": "fp16"}, f"{FSDP}.model_dtype", "warning", "silent"),
    # offload
    Broken(
        "offload-policy-fsdp1", {**FSDP1, f"{FSDP}.offload_policy": True}, f"{FSDP}.offload_policy", "warning", "silent"
    ),
    Broken(
        "offload-policy-overrides",
        {f"{FSDP}.offload_policy": True, f"{FSDP}.param_offload": True, f"{FSDP}.optimizer_offload": True},
        f"{FSDP}.param_offload",
        "warning",
        "silent",
    ),
    Broken(
        "ref-offload-forced",
        {f"{REF}.fsdp_config.param_offload": False},
        f"{REF}.fsdp_config.param_offload",
        "note",
        "silent",
        fixable=False,
    ),
    Broken(
        "reshard-param-offload",
        {f"{FSDP}.reshard_after_forward": False, f"{FSDP}.param_offload": True},
        f"{FSDP}.reshard_after_forward",
        "warning",
        "first-step",
    ),
    Broken(
        "no-sync-memory",
        {f"{FSDP}.use_no_sync_for_gradient_accumulation": True},
        f"{FSDP}.use_no_sync_for_gradient_accumulation",
        "warning",
        "first-step",
    ),
    Broken(
        "activation-offload-alone",
        {f"{MODEL}.enable_activation_offload": True, f"{MODEL}.enable_gradient_checkpointing": False},
        f"{MODEL}.enable_activation_offload",
        "warning",
        "silent",
    ),
    Broken(
        "save-host-memory",
        {f"{FSDP}.optimizer_offload": True},
        "trainer.save_freq",
        "note",
        "first-step",
        {"machine": {"host_memory_bytes": 128 * GIB}},
        fixable=False,
    ),
    # rollout
    Broken("rollout-name", {}, f"{ROLLOUT}.name", "error", "workers", without=(f"{ROLLOUT}.name",)),
    Broken("rollout-mode", {f"{ROLLOUT}.mode": "sync"}, f"{ROLLOUT}.mode", "error", "workers"),
    Broken("rollout-tensor-parallel", {TP: 3}, TP, "error", "workers"),
    Broken(
        "rollout-tensor-parallel",
        {"trainer.n_gpus_per_node": 1, f"{ACTOR}.ppo_mini_batch_size": 32},
        TP,
        "error",
        "workers",
        without=(TP,),
        note="verl's default of 2 on one GPU",
    ),
    Broken("rollout-heads", {TP: 8}, TP, "error", "rollout"),
    Broken(
        "rollout-pipeline",
        {f"{ROLLOUT}.pipeline_model_parallel_size": 2},
        f"{ROLLOUT}.pipeline_model_parallel_size",
        "error",
        "workers",
    ),
    Broken("rollout-length", {f"{ROLLOUT}.max_model_len": 1024}, f"{ROLLOUT}.max_model_len", "error", "first-step"),
    Broken(
        "rollout-length",
        {f"{ROLLOUT}.max_model_len": 1500},
        f"{ROLLOUT}.max_model_len",
        "warning",
        "silent",
        note="responses cut",
    ),
    Broken(
        "rollout-length",
        {f"{ROLLOUT}.max_model_len": 65536},
        f"{ROLLOUT}.max_model_len",
        "error",
        "rollout",
        note="above the model's context",
    ),
    Broken(
        "rollout-experts", {f"{ROLLOUT}.expert_parallel_size": 4}, f"{ROLLOUT}.expert_parallel_size", "error", "workers"
    ),
    Broken("rollout-nodes", {TP: 12, "trainer.nnodes": 3}, TP, "error", "rollout", {"machine": {"nodes": 3}}),
    Broken(
        "rollout-disaggregation",
        {f"{ROLLOUT}.disaggregation.enabled": True, f"{ROLLOUT}.name": "trtllm"},
        f"{ROLLOUT}.disaggregation.enabled",
        "error",
        "workers",
    ),
    Broken(
        "rollout-memory",
        {f"{ROLLOUT}.gpu_memory_utilization": 0.1},
        f"{ROLLOUT}.gpu_memory_utilization",
        "error",
        "rollout",
    ),
    Broken(
        "rollout-memory",
        {f"{ROLLOUT}.gpu_memory_utilization": 0.9},
        f"{ROLLOUT}.gpu_memory_utilization",
        "error",
        "rollout",
        {"machine": {"gpu_free_bytes": 40 * GIB}},
        note="another process",
    ),
    Broken(
        "rollout-sampling",
        {f"{ROLLOUT}.temperature": 0.0, f"{ROLLOUT}.val_kwargs.do_sample": True},
        f"{ROLLOUT}.temperature",
        "error",
        "driver",
    ),
    Broken("group-size", {f"{ROLLOUT}.n": 1}, f"{ROLLOUT}.n", "warning", "silent"),
    # LoRA
    Broken("lora-rank-limit", {f"{MODEL}.lora_rank": 1024}, f"{MODEL}.lora_rank", "error", "driver"),
    Broken("lora-block-rank", {f"{MODEL}.lora.rank": 32}, f"{MODEL}.lora.rank", "error", "first-step"),
    Broken(
        "lora-block-rank",
        {f"{MODEL}.lora.rank": 32, f"{ACTOR}.use_kl_loss": False},
        f"{MODEL}.lora.rank",
        "error",
        "silent",
        note="no reference",
    ),
    Broken(
        "lora-adapter-rank",
        {f"{MODEL}.lora_adapter_path": "adapter"},
        f"{MODEL}.lora_adapter_path",
        "error",
        "first-step",
    ),
    Broken(
        "lora-load-format", {**LORA, f"{ROLLOUT}.layered_summon": True}, f"{ROLLOUT}.load_format", "error", "first-step"
    ),
    Broken(
        "lora-target-modules", {**LORA, f"{MODEL}.target_modules": [1]}, f"{MODEL}.target_modules", "error", "workers"
    ),
    Broken(
        "lora-expert-parameters",
        {**LORA, f"{MODEL}.target_parameters": ["mlp.experts"]},
        f"{MODEL}.target_parameters",
        "warning",
        "workers",
    ),
    # roles
    Broken("strategy-unknown", {f"{ACTOR}.strategy": "fsdp3"}, f"{ACTOR}.strategy", "error", "workers"),
    Broken("strategy-overwritten", {**FSDP1, f"{FSDP}.strategy": "fsdp2"}, f"{FSDP}.strategy", "warning", "silent"),
    Broken("critic-strategy", PPO, "critic.strategy", "note", "silent", without=("critic.strategy",)),
    Broken("estimator-unknown", {"algorithm.adv_estimator": "grop"}, "algorithm.adv_estimator", "error", "first-step"),
    Broken("kl-twice", {"algorithm.use_kl_in_reward": True}, "algorithm.use_kl_in_reward", "warning", "silent"),
    Broken("flash-attn-missing", {}, ATTENTION, "error", "workers", {"versions": {"flash-attn": ""}}),
    Broken(
        "attention-compute-capability", {}, ATTENTION, "error", "first-step", {"machine": {"compute_capability": "7.5"}}
    ),
    Broken(
        "critic-flash-attn",
        {**PPO, ATTENTION: "sdpa"},
        "critic.model.path",
        "error",
        "workers",
        {"versions": {"flash-attn": ""}},
    ),
    Broken("remote-code", {}, f"{MODEL}.trust_remote_code", "error", "workers", {"arch": {"remote_code": True}}),
    Broken(
        "host-memory",
        {},
        f"{MODEL}.path",
        "error",
        "workers",
        {"arch": {"tied_embeddings": True}, "machine": {"host_memory_bytes": 200 * GIB}},
        fixable=False,
    ),
    Broken(
        "liger-missing",
        {f"{MODEL}.use_liger": True},
        f"{MODEL}.use_liger",
        "error",
        "workers",
        {"versions": {"liger-kernel": ""}},
    ),
    # algorithm
    Broken("loss-aggregation", {f"{ACTOR}.loss_agg_mode": "token_mean"}, f"{ACTOR}.loss_agg_mode", "error", "driver"),
    Broken(
        "policy-loss-unknown",
        {f"{ACTOR}.policy_loss.loss_mode": "vanila"},
        f"{ACTOR}.policy_loss.loss_mode",
        "error",
        "first-step",
    ),
    Broken("kl-form-unknown", {f"{ACTOR}.kl_loss_type": "full"}, f"{ACTOR}.kl_loss_type", "error", "first-step"),
    Broken(
        "kl-controller",
        {"algorithm.use_kl_in_reward": True, f"{ACTOR}.use_kl_loss": False, "algorithm.kl_ctrl.type": "adaptiv"},
        "algorithm.kl_ctrl.type",
        "error",
        "trainer",
    ),
    Broken("dual-clip", {f"{ACTOR}.clip_ratio_c": 1.0}, f"{ACTOR}.clip_ratio_c", "error", "first-step"),
    Broken(
        "gdpo-reward-keys", {"algorithm.adv_estimator": "gdpo"}, "algorithm.gdpo_reward_keys", "error", "first-step"
    ),
    Broken(
        "lr-schedule",
        {f"{ACTOR}.optim.lr_scheduler_type": "cosin"},
        f"{ACTOR}.optim.lr_scheduler_type",
        "error",
        "driver",
    ),
    Broken("clip-grad-unset", {f"{ACTOR}.optim.clip_grad": None}, f"{ACTOR}.optim.clip_grad", "error", "first-step"),
    Broken("grad-clip-dead", {f"{ACTOR}.grad_clip": 0.5}, f"{ACTOR}.grad_clip", "warning", "silent"),
    # trainer and resources
    Broken("ray-gpus", {}, "trainer.n_gpus_per_node", "error", "trainer", {"machine": {"gpus_per_node": 4}}),
    Broken("ray-cpus", {}, "trainer.n_gpus_per_node", "error", "trainer", {"machine": {"host_cpus": 12}}),
    Broken("visible-devices", {}, "trainer.n_gpus_per_node", "error", "trainer", {"visible": "0,1"}),
    Broken(
        "visible-devices", {}, "trainer.n_gpus_per_node", "error", "workers", {"visible": "MIG-1,MIG-2"}, note="MIG"
    ),
    Broken("trainer-mode", {"trainer.v1.trainer_mode": "synch"}, "trainer.v1.trainer_mode", "error", "trainer"),
    Broken(
        "separate-rollout",
        {**SEPARATE, f"{ROLLOUT}.checkpoint_engine.backend": "naive"},
        f"{ROLLOUT}.checkpoint_engine.backend",
        "error",
        "trainer",
    ),
    Broken(
        "separate-rollout",
        {**SEPARATE, "trainer.v1.separate_async.parameter_sync_step": 4},
        "data.train_batch_size",
        "error",
        "trainer",
        note="step",
    ),
    Broken(
        "reward-pool",
        {"reward.reward_model.enable": True, "reward.reward_model.enable_resource_pool": True},
        "reward.reward_model.nnodes",
        "error",
        "trainer",
    ),
    Broken("logger-wandb", {}, "trainer.logger", "note", "trainer", without=("trainer.logger",)),
    Broken(
        "overlong-prompts",
        {"data.filter_overlong_prompts": False},
        "data.filter_overlong_prompts",
        "warning",
        "first-step",
    ),
    Broken(
        "legacy-reward", {"custom_reward_function.path": "reward.py"}, "custom_reward_function.path", "error", "silent"
    ),
    Broken("generation-batch", {"data.gen_batch_size": 48}, "data.gen_batch_size", "error", "first-step"),
    Broken("resume-path", {"trainer.resume_mode": "resume_path"}, "trainer.resume_from_path", "error", "trainer"),
    Broken(
        "hybrid-engine",
        {"actor_rollout_ref.hybrid_engine": False},
        "actor_rollout_ref.hybrid_engine",
        "warning",
        "silent",
    ),
    Broken(
        "hybrid-engine",
        {"actor_rollout_ref.hybrid_engine": False, "trainer.use_v1": False},
        "actor_rollout_ref.hybrid_engine",
        "error",
        "trainer",
        note="v0",
    ),
    Broken(
        "filter-groups",
        {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": None},
        "algorithm.filter_groups.metric",
        "error",
        "trainer",
    ),
    Broken(
        "off-policy",
        {"trainer.v1.sampler.max_off_policy_threshold": 0},
        "trainer.v1.sampler.max_off_policy_threshold",
        "error",
        "trainer",
    ),
    Broken(
        "teacher-pool",
        {"distillation.enabled": True, "distillation.nnodes": 0},
        "distillation.nnodes",
        "error",
        "trainer",
    ),
    Broken("model-path-default", {}, f"{MODEL}.path", "error", "workers", without=(f"{MODEL}.path",), fixable=False),
    Broken(
        "model-path-default", PPO, "critic.model.path", "error", "driver", without=("critic.model.path",), note="critic"
    ),
    # versions
    Broken("torch-version", {}, f"{ACTOR}.strategy", "error", "environment", {"versions": {"torch": "2.3.1"}}),
    Broken(
        "package-version",
        {},
        f"{MODEL}.path",
        "warning",
        "environment",
        {"versions": {"transformers": "5.6.0"}},
        fixable=False,
    ),
    Broken(
        "package-version",
        {},
        f"{MODEL}.path",
        "error",
        "environment",
        {"versions": {"transformers": "4.39.3"}},
        fixable=False,
        note="too old for any",
    ),
    Broken(
        "rollout-engine-missing",
        {},
        f"{ROLLOUT}.name",
        "error",
        "workers",
        {"versions": {"vllm": "", "sglang": "0.5.12"}},
    ),
    Broken("transfer-queue-missing", {}, "trainer.use_v1", "error", "trainer", {"versions": {"TransferQueue": ""}}),
    Broken("peft-missing", LORA, f"{MODEL}.lora_rank", "error", "workers", {"versions": {"peft": ""}}),
    # keys
    Broken("unknown-key", {"algorithm.adv_estimater": "grpo"}, "algorithm.adv_estimater", "warning", "silent"),
    Broken("unknown-key", {f"{FSDP}.param_ofload": True}, f"{FSDP}.param_ofload", "error", "driver", note="dataclass"),
    Broken("dead-key", {"model_mapping.critic": [6, 7]}, "model_mapping.critic", "warning", "silent", fixable=False),
    Broken(
        "torch-compile-dead", {f"{ACTOR}.use_torch_compile": False}, f"{ACTOR}.use_torch_compile", "warning", "silent"
    ),
    Broken(
        "orig-params-fsdp2",
        {f"{FSDP}.use_orig_params": True},
        f"{FSDP}.use_orig_params",
        "note",
        "silent",
        fixable=False,
    ),
)
