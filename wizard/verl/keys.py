"""Which verl key each field of the Plan becomes: the one table that export, import and explanations share.

Keys are verl 0.9's; `wizard.verl.versions` renames them for older releases. Order matters: a key that others follow
by interpolation (`actor…use_dynamic_bsz`) stands before its followers, so that only true differences are written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wizard.model.tiny import TINY_ID, tiny_folder
from wizard.plan import Plan

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"

ENGINES: Mapping[str, str] = {
    "actor": f"{ACTOR}.fsdp_config",
    "ref": f"{REF}.fsdp_config",
    "critic": "critic.fsdp",
}
"""Where each role's FSDP engine reads its settings (verl 0.9.1 `workers/config/{actor,critic}.py`, `self.engine = "
"…`)."""

ESTIMATORS: Mapping[str, str] = {
    "grpo": "grpo",
    "ppo": "gae",
    "rloo": "rloo",
    "reinforce++": "reinforce_plus_plus",
    "remax": "remax",
}
"""The Plan's algorithm names and verl's (`trainer/ppo/core_algos.py`, `AdvantageEstimator`)."""


class Unmappable(ValueError):
    """A value verl may accept but the Plan has no word for."""


@dataclass(frozen=True)
class ExportedKey:
    """One verl key and the Plan field it carries."""

    path: str
    """Dotted Plan path; empty for a key that no single field decides."""
    key: str
    reason: str
    """Why the line is there, as the YAML's comment."""
    to_verl: Callable[[Plan], Any]
    from_verl: Callable[[Any], Any]
    """Turns verl's value into the Plan's; raises Unmappable."""
    applies: Callable[[Plan], bool]
    explicit: bool = False
    """Written even where it equals verl's default."""
    absent: Any = None
    """What verl assumes where its YAML lacks the key."""


def _always(plan: Plan) -> bool:
    return True


def _has(role: str) -> Callable[[Plan], bool]:
    return lambda plan: role in plan.roles


def _dynamic(plan: Plan) -> bool:
    return plan.batches.dynamic


def _both(*conditions: Callable[[Plan], bool]) -> Callable[[Plan], bool]:
    return lambda plan: all(condition(plan) for condition in conditions)


def _not(condition: Callable[[Plan], bool]) -> Callable[[Plan], bool]:
    return lambda plan: not condition(plan)


def _same(value: Any) -> Any:
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unmappable(value)
    return float(value)


def _names(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise Unmappable(value)


def _one_file(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise Unmappable(value)
    return value


def _dtype(value: Any) -> str:
    """Return the Plan's name of a dtype, as verl 0.9.1 `utils/torch_dtypes.py` reads it."""
    found = {
        "bf16": "bf16", "bfloat16": "bf16",
        "fp16": "fp16", "float16": "fp16", "16": "fp16",
        "fp32": "fp32", "float32": "fp32", "32": "fp32",
    }.get(str(value))  # fmt: skip
    if found is None:
        raise Unmappable(value)
    return found


def _estimator(value: Any) -> str:
    for ours, theirs in ESTIMATORS.items():
        if value == theirs:
            return ours
    raise Unmappable(value)


def _field(
    path: str,
    key: str,
    reason: str,
    *,
    to: Callable[[Any], Any] = _same,
    back: Callable[[Any], Any] = _same,
    applies: Callable[[Plan], bool] = _always,
    explicit: bool = False,
    absent: Any = None,
) -> ExportedKey:
    return ExportedKey(path, key, reason, lambda plan: to(plan.get(path)), back, applies, explicit, absent)


def model_path(plan: Plan, role: str) -> str:
    """Return what verl is to load for a role: the built-in model's folder, else what the person typed."""
    model = (plan.model.critic_id or plan.model.id) if role == "critic" else plan.model.id
    return str(tiny_folder()) if model == TINY_ID else model


def _model_id(value: Any) -> Any:
    return TINY_ID if value == str(tiny_folder()) else value


def _model() -> tuple[ExportedKey, ...]:
    keys: list[ExportedKey] = []
    for block, condition, role in ((MODEL, _always, "actor"), ("critic.model", _has("critic"), "critic")):
        whose = "critic" if role == "critic" else "policy"

        def path_of(plan: Plan, role: str = role) -> str:
            return model_path(plan, role)

        keys += [
            ExportedKey(
                "model.critic_id" if role == "critic" else "model.id",
                f"{block}.path",
                f"the {whose} model; verl's default is a path that nobody has",
                path_of, _model_id, condition, True,
            ),
            _field("model.trust_remote_code", f"{block}.trust_remote_code",
                   f"the {whose} model brings Python files of its own, which you agreed to run", applies=condition),
            _field("model.use_remove_padding", f"{block}.use_remove_padding",
                   f"whether the {whose}'s sequences are packed without padding", applies=condition),
            _field("model.gradient_checkpointing", f"{block}.enable_gradient_checkpointing",
                   f"whether the {whose} recomputes activations in backward", applies=condition),
            _field("model.activation_offload", f"{block}.enable_activation_offload",
                   f"whether the {whose}'s checkpointed activations live in host memory", applies=condition),
            _field("model.liger", f"{block}.use_liger",
                   f"whether the {whose} runs Liger's fused kernels", applies=condition),
        ]  # fmt: skip
    keys += [
        _field("model.attention", f"{MODEL}.override_config.attn_implementation",
               "attention of actor and ref; verl assumes flash_attention_2, its critic knows nothing else",
               absent="flash_attention_2"),
        _field("model.fused_kernels", f"{MODEL}.use_fused_kernels",
               "log-probabilities without materialising the logits"),
        _field("model.lora_rank", f"{MODEL}.lora_rank", "LoRA rank; 0 trains all parameters"),
        _field("model.lora_alpha", f"{MODEL}.lora_alpha", "LoRA scale is alpha / rank",
               applies=lambda plan: plan.model.lora_rank > 0),
        _field("model.trust_remote_code", "data.trust_remote_code",
               "the data set's tokenizer and processor run the model's own files too"),
    ]  # fmt: skip
    return tuple(keys)


def _algorithm_and_data() -> tuple[ExportedKey, ...]:
    return (
        _field("algorithm.name", "algorithm.adv_estimator", "the advantage estimator; it decides if there is a critic",
               to=lambda name: ESTIMATORS[name], back=_estimator, explicit=True),
        _field("algorithm.use_kl_in_reward", "algorithm.use_kl_in_reward",
               "KL penalty inside the reward; needs the ref model"),
        _field("algorithm.use_kl_loss", f"{ACTOR}.use_kl_loss", "KL term in the actor's loss; needs the ref model"),
        _field("algorithm.kl_loss_coef", f"{ACTOR}.kl_loss_coef", "weight of that KL term", back=_number,
               applies=lambda plan: plan.algorithm.use_kl_loss),
        _field("algorithm.entropy_coef", f"{ACTOR}.entropy_coeff", "weight of the entropy bonus", back=_number),
        _field("data.train_files", "data.train_files", "training data", back=_one_file, explicit=True),
        _field("data.val_files", "data.val_files", "validation data", back=_one_file, explicit=True),
        _field("data.max_prompt_length", "data.max_prompt_length", "longest prompt, in tokens"),
        _field("data.max_response_length", "data.max_response_length", "longest response, in tokens"),
        ExportedKey("", "data.filter_overlong_prompts",
                    "longer prompts are left out; verl's default stops the run at the first one",
                    lambda plan: True, _same, _always),
        _field("batches.train_batch_size", "data.train_batch_size", "prompts a step", explicit=True),
    )  # fmt: skip


def _batches() -> tuple[ExportedKey, ...]:
    fixed = _not(_dynamic)
    return (
        _field("batches.mini_batch_size", f"{ACTOR}.ppo_mini_batch_size",
               "prompts an optimizer update; the critic follows", explicit=True),
        _field("batches.dynamic", f"{ACTOR}.use_dynamic_bsz",
               "micro-batches packed to a token budget; rollout, ref and critic follow this key", explicit=True),
        _field("batches.micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size_per_gpu",
               "samples a forward-backward pass holds on one GPU", applies=fixed),
        _field("batches.max_tokens_per_gpu", f"{ACTOR}.ppo_max_token_len_per_gpu",
               "tokens a forward-backward pass holds on one GPU", applies=_dynamic),
        _field("batches.learning_rate", f"{ACTOR}.optim.lr", "actor's learning rate", back=_number),
        _field("batches.log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
               "samples a log-prob pass of the actor holds on one GPU", applies=fixed),
        _field("batches.log_prob_max_tokens_per_gpu", f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
               "tokens a log-prob pass of the actor holds on one GPU", applies=_dynamic),
        _field("batches.log_prob_micro_batch_size_per_gpu", f"{REF}.log_prob_micro_batch_size_per_gpu",
               "samples a log-prob pass of the ref model holds on one GPU", applies=_both(fixed, _has("ref"))),
        _field("batches.log_prob_max_tokens_per_gpu", f"{REF}.log_prob_max_token_len_per_gpu",
               "tokens a log-prob pass of the ref model holds on one GPU", applies=_both(_dynamic, _has("ref"))),
        _field("batches.critic_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size_per_gpu",
               "verl's check demands it, its critic engine packs to a token budget all the same",
               applies=_both(fixed, _has("critic"))),
        _field("batches.critic_max_tokens_per_gpu", "critic.ppo_infer_max_token_len_per_gpu",
               "the critic's token budget, for training too", applies=_has("critic"), absent=32768),
        _field("batches.critic_learning_rate", "critic.optim.lr", "critic's learning rate", back=_number,
               applies=_has("critic")),
    )  # fmt: skip


def _engine(role: str) -> tuple[ExportedKey, ...]:
    block, applies = ENGINES[role], (_always if role == "actor" else _has(role))
    owner = {"actor": ACTOR, "ref": REF, "critic": "critic"}[role]
    trained = role != "ref"

    def key(name: str, verl_name: str, reason: str, *, back: Callable[[Any], Any] = _same, absent: Any = None,
            explicit: bool = False, to: Callable[[Any], Any] = _same) -> ExportedKey:  # fmt: skip
        return _field(f"{role}.{name}", verl_name, reason, back=back, absent=absent, explicit=explicit, to=to,
                      applies=applies)  # fmt: skip

    keys = [
        key("strategy", f"{owner}.strategy",
            f"the {role}'s FSDP version; fsdp_config.strategy is overwritten by this one"
            + (", and the critic does not follow the actor" if role == "critic" else ""), explicit=role != "ref"),
        key("wrap_classes", f"{block}.wrap_policy.transformer_layer_cls_to_wrap",
            f"classes that become the {role}'s FSDP units, a list", to=list, back=_names, absent=()),
        key("min_num_params", f"{block}.wrap_policy.min_num_params", "wrap by size; fsdp then ignores the classes"),
        key("master_dtype", f"{block}.model_dtype", f"dtype the {role}'s sharded parameters live in", back=_dtype),
        key("param_dtype", f"{block}.mixed_precision.param_dtype", f"dtype the {role} computes in", back=_dtype,
            absent="bf16"),
        key("reduce_dtype", f"{block}.mixed_precision.reduce_dtype", f"dtype the {role}'s gradients are reduced in",
            back=_dtype, absent="fp32"),
        key("buffer_dtype", f"{block}.mixed_precision.buffer_dtype", f"dtype of the {role}'s buffers; fsdp only",
            back=_dtype, absent="fp32"),
        key("param_offload", f"{block}.param_offload", f"the {role}'s parameters wait in host memory between phases"),
        key("optimizer_offload", f"{block}.optimizer_offload",
            f"the {role}'s optimizer state waits in host memory between phases"),
        key("offload_policy", f"{block}.offload_policy",
            "fsdp2's CPUOffloadPolicy; it switches the two offloads above off"),
        key("fsdp_size", f"{block}.fsdp_size", "ranks a shard group has; -1 is all"),
        key("reshard_after_forward", f"{block}.reshard_after_forward", "if gathered parameters go after forward"),
        key("forward_prefetch", f"{block}.forward_prefetch", "whether the next unit is gathered during forward"),
        key("use_orig_params", f"{block}.use_orig_params", "fsdp only: original parameters stay visible"),
    ]  # fmt: skip
    if role == "actor":
        keys.append(key("ulysses_size", f"{ACTOR}.ulysses_sequence_parallel_size",
                        "Ulysses sequence parallel size where verl's check looks, and which ref follows"))  # fmt: skip
    if role == "ref":
        keys.append(key("ulysses_size", f"{REF}.ulysses_sequence_parallel_size",
                        "the ref model would follow the actor's sequence parallel size"))  # fmt: skip
    keys.append(key("ulysses_size", f"{block}.ulysses_sequence_parallel_size",
                    f"ranks that share one sequence of the {role}"))  # fmt: skip
    if trained:
        keys.append(key("no_sync", f"{block}.use_no_sync_for_gradient_accumulation",
                        "whether gradients wait unsharded for the last micro-batch; YAML and dataclass disagree on "
                        "the default",
                        explicit=True))  # fmt: skip
    if role != "critic":
        keys += [
            key("entropy_chunking", f"{owner}.entropy_from_logits_with_chunking", f"the {role}'s entropy in chunks"),
            key(
                "entropy_checkpointing",
                f"{owner}.entropy_checkpointing",
                f"the {role}'s entropy recomputed in backward",
            ),
        ]
    return tuple(keys)


def _rollout() -> tuple[ExportedKey, ...]:
    return (
        _field("rollout.engine", f"{ROLLOUT}.name", "the inference engine; verl has no default", explicit=True),
        _field("rollout.n", f"{ROLLOUT}.n", "responses a prompt gets"),
        _field("rollout.tensor_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size",
               "GPUs that share one copy of the rollout model; verl's default is 2", explicit=True),
        _field("rollout.gpu_memory_utilization", f"{ROLLOUT}.gpu_memory_utilization",
               "share of the GPU's total memory the engine takes", back=_number, explicit=True),
        ExportedKey("rollout.max_model_len", f"{ROLLOUT}.max_model_len",
                    "longest sequence the engine accepts; null would mean the model's whole context",
                    lambda plan: plan.rollout.max_model_len or plan.data.longest_sequence,
                    lambda value: 0 if value is None else value, _always),
        _field("rollout.max_num_batched_tokens", f"{ROLLOUT}.max_num_batched_tokens", "tokens of one engine step"),
        _field("rollout.temperature", f"{ROLLOUT}.temperature", "sampling temperature", back=_number),
        _field("rollout.enforce_eager", f"{ROLLOUT}.enforce_eager", "no CUDA graphs: less memory, slower decoding"),
        _field("rollout.free_cache_engine", f"{ROLLOUT}.free_cache_engine", "the KV cache is freed during updates"),
    )  # fmt: skip


def training_nodes(plan: Plan) -> int:
    """Return the nodes of the actor's GPU group, the whole machine's without groups."""
    group = plan.group("actor")
    return group.nodes if group else max(1, plan.machine.nodes)


def _trainer() -> tuple[ExportedKey, ...]:
    return (
        ExportedKey("machine.nodes", "trainer.nnodes", "nodes that train", training_nodes, _same, _always, True),
        ExportedKey("machine.gpus_per_node", "trainer.n_gpus_per_node", "GPUs a node; verl's default is 8",
                    lambda plan: plan.gpus_of_node("actor"), _same, _always, True),
        _field("trainer.project_name", "trainer.project_name", "project the logger files the run under"),
        _field("trainer.experiment_name", "trainer.experiment_name", "name of this run"),
        _field("trainer.total_epochs", "trainer.total_epochs", "passes over the data set"),
        _field("trainer.save_freq", "trainer.save_freq", "steps between checkpoints"),
        _field("trainer.test_freq", "trainer.test_freq", "steps between validations"),
        _field("trainer.logger", "trainer.logger", "loggers; verl's default wants a wandb login", to=list, back=_names),
    )  # fmt: skip


@functools.cache
def exported_keys() -> tuple[ExportedKey, ...]:
    """Return every verl key the Plan writes, in the order of the generated file."""
    return (
        *_algorithm_and_data(), *_model(), *_batches(),
        *_engine("actor"), *_engine("ref"), *_engine("critic"),
        *_rollout(), *_trainer(),
    )  # fmt: skip
