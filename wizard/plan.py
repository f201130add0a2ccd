"""The Plan: everything the person decides, as one immutable value.

This is the only place where a field's default, choices, unit and help live. Screens make widgets of it, the
command line takes its paths (`--set actor.reduce_dtype=fp32`), generators write it out, rules judge it.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from wizard.facts import Architecture, Machine
from wizard.scrub import is_secret

Strategy = Literal["fsdp", "fsdp2"]
Dtype = Literal["fp32", "bf16", "fp16"]
AlgorithmName = Literal["grpo", "ppo", "rloo", "reinforce++", "remax"]
Attention = Literal["flash_attention_2", "sdpa", "eager"]
Role = Literal["actor", "rollout", "ref", "critic", "reward"]
REWARD_MODEL = ("reward.reward_model.enable", "reward_model.enable")
"""Switches of a reward model, since 0.7 and before it; the Plan has no field for it, but keeps what a file gives."""


def spec(default: Any, help: str, *, unit: str = "", minimum: float | None = None) -> Any:
    """Declare one field of the Plan: its default, what it is, its unit and its smallest value."""
    return field(default=default, metadata={"help": help, "unit": unit, "minimum": minimum})


@dataclass(frozen=True)
class Target:
    """The interpreter and the verl that training will use."""

    python: str = spec("", "Interpreter that trains and validates; empty means the one the wizard runs in.")
    verl_version: str = spec("0.9.1", "verl release the files are written for.")


@dataclass(frozen=True)
class Model:
    """The policy model and how its layers run."""

    id: str = spec("tiny", "Local directory, Hugging Face id, preset name, or `tiny` for the built-in model.")
    critic_id: str = spec("", "Model of the critic; empty means the policy model.")
    revision: str = spec(
        "", "Commit of the hub's repository (empty: its default branch), or digest of a folder's code that may run."
    )
    trust_remote_code: bool = spec(False, "Run the Python files that the model's config names.")
    attention: Attention = spec("flash_attention_2", "Attention implementation of the training engine.")
    use_remove_padding: bool = spec(True, "Pack sequences without padding; Ulysses needs it.")
    gradient_checkpointing: bool = spec(True, "Keep only each layer's input and recompute the rest in backward.")
    activation_offload: bool = spec(False, "Keep checkpointed activations in host memory.")
    fused_kernels: bool = spec(False, "Compute log-probabilities and entropy without materialising the logits.")
    liger: bool = spec(False, "Use Liger's fused RMSNorm, SwiGLU and rotary kernels.")
    lora_rank: int = spec(0, "LoRA rank; 0 trains all parameters.", minimum=0)
    lora_alpha: int = spec(16, "LoRA scale: the update is multiplied by alpha / rank.", minimum=1)


@dataclass(frozen=True)
class Algorithm:
    """The advantage estimator and its KL terms; it decides which roles exist."""

    name: AlgorithmName = spec("grpo", "Advantage estimator: GRPO, PPO with GAE, RLOO, REINFORCE++ or ReMax.")
    use_kl_loss: bool = spec(True, "Add a KL term against the reference model to the actor's loss.")
    kl_loss_coef: float = spec(0.001, "Weight of that KL term.", minimum=0)
    use_kl_in_reward: bool = spec(False, "Subtract a KL penalty against the reference model from the reward.")
    entropy_coef: float = spec(0.0, "Weight of the entropy bonus; other than 0 it costs logits-sized memory.")


@dataclass(frozen=True)
class Data:
    """The data set and the lengths its samples may have."""

    train_files: str = spec("~/data/gsm8k/train.parquet", "Training parquet file.")
    val_files: str = spec("~/data/gsm8k/test.parquet", "Validation parquet file.")
    max_prompt_length: int = spec(1024, "Longest prompt kept.", unit="tokens", minimum=1)
    max_response_length: int = spec(1024, "Longest response generated.", unit="tokens", minimum=1)

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt with the longest response."""
        return self.max_prompt_length + self.max_response_length


@dataclass(frozen=True)
class Fsdp:
    """How one role's model is sharded, cast and offloaded."""

    strategy: Strategy = spec("fsdp2", "FSDP version: fsdp (FullyShardedDataParallel) or fsdp2 (fully_shard).")
    wrap_classes: tuple[str, ...] = spec(
        (), "Classes that become FSDP units; empty leaves the choice to the model's `_no_split_modules`."
    )
    min_num_params: int = spec(0, "Wrap by size instead: fsdp then ignores the classes, fsdp2 ignores this.", minimum=0)
    master_dtype: Dtype = spec("fp32", "dtype the sharded parameters and the optimizer live in.")
    param_dtype: Dtype = spec("bf16", "dtype of gathered parameters and of compute.")
    reduce_dtype: Dtype = spec("fp32", "dtype gradients are reduced in across ranks.")
    buffer_dtype: Dtype = spec("fp32", "dtype of buffers; only fsdp reads it.")
    param_offload: bool = spec(False, "Move parameters to host memory between phases.")
    optimizer_offload: bool = spec(False, "Move optimizer state to host memory between phases.")
    offload_policy: bool = spec(
        False, "fsdp2's CPUOffloadPolicy: parameters, gradients and optimizer live on the host."
    )
    fsdp_size: int = spec(
        -1, "Ranks a shard group has; -1 means all (HSDP when smaller than the world size).", unit="ranks"
    )
    ulysses_size: int = spec(
        1, "Ulysses sequence parallel size: ranks that share one sequence.", unit="ranks", minimum=1
    )
    reshard_after_forward: bool = spec(
        True, "Free gathered parameters after forward and gather them again in backward."
    )
    forward_prefetch: bool = spec(False, "Gather the next unit during forward.")
    use_orig_params: bool = spec(False, "fsdp only: keep original parameters visible; LoRA with size wrap needs it.")
    no_sync: bool = spec(
        False, "Skip gradient reduction until the last micro-batch; keeps a whole unsharded gradient on every rank."
    )
    entropy_chunking: bool = spec(False, "Compute entropy from logits in chunks.")
    entropy_checkpointing: bool = spec(False, "Recompute entropy's intermediates in backward.")


@dataclass(frozen=True)
class Batches:
    """Batch sizes. Train and mini batches count prompts, micro-batches count samples on one GPU."""

    train_batch_size: int = spec(256, "Prompts a training step.", unit="prompts", minimum=1)
    mini_batch_size: int = spec(64, "Prompts an optimizer update.", unit="prompts", minimum=1)
    dynamic: bool = spec(True, "Pack micro-batches up to a token budget instead of a fixed number of samples.")
    micro_batch_size_per_gpu: int = spec(
        4, "Samples a forward-backward pass holds, without dynamic batching.", unit="samples", minimum=1
    )
    max_tokens_per_gpu: int = spec(
        16384, "Token budget a forward-backward pass holds, with dynamic batching.", unit="tokens", minimum=1
    )
    log_prob_micro_batch_size_per_gpu: int = spec(8, "Samples a log-prob pass holds.", unit="samples", minimum=1)
    log_prob_max_tokens_per_gpu: int = spec(16384, "Token budget a log-prob pass holds.", unit="tokens", minimum=1)
    critic_micro_batch_size_per_gpu: int = spec(
        4, "Demanded by verl's check, ignored by its critic engine.", unit="samples", minimum=1
    )
    critic_max_tokens_per_gpu: int = spec(
        16384, "Token budget of the critic, which always packs dynamically.", unit="tokens", minimum=1
    )
    learning_rate: float = spec(1e-6, "Actor's learning rate.", minimum=0)
    critic_learning_rate: float = spec(1e-5, "Critic's learning rate.", minimum=0)


@dataclass(frozen=True)
class Rollout:
    """The inference engine that generates responses."""

    engine: Literal["vllm", "sglang"] = spec("vllm", "Inference engine.")
    n: int = spec(5, "Responses a prompt gets.", unit="samples", minimum=1)
    tensor_parallel_size: int = spec(1, "GPUs that share one copy of the rollout model.", unit="ranks", minimum=1)
    gpu_memory_utilization: float = spec(0.5, "Share of the GPU's total memory the engine takes.", minimum=0)
    max_model_len: int = spec(
        0, "Longest sequence the engine accepts; 0 means prompt plus response.", unit="tokens", minimum=0
    )
    max_num_batched_tokens: int = spec(8192, "Tokens one engine step may process.", unit="tokens", minimum=1)
    temperature: float = spec(1.0, "Sampling temperature.", minimum=0)
    enforce_eager: bool = spec(False, "No CUDA graphs: less memory, slower decoding.")
    free_cache_engine: bool = spec(True, "Free the KV cache while the trainer updates.")


@dataclass(frozen=True)
class GpuGroup:
    """Roles that live together on the same GPUs of every node they span."""

    roles: tuple[Role, ...]
    nodes: int
    gpus_per_node: int


@dataclass(frozen=True)
class Placement:
    """Which roles share which GPUs. No groups: everything colocated on the whole machine."""

    groups: tuple[GpuGroup, ...] = spec((), "Groups of roles with GPUs of their own; empty colocates all roles.")


@dataclass(frozen=True)
class Trainer:
    """The run's name, length and habits."""

    project_name: str = spec("verl-wizard", "Project the logger files the run under.")
    experiment_name: str = spec("run", "Name of this run.")
    total_epochs: int = spec(15, "Passes over the data set.", unit="epochs", minimum=1)
    save_freq: int = spec(20, "Steps between checkpoints; -1 never saves.", unit="steps")
    test_freq: int = spec(10, "Steps between validations; -1 never validates.", unit="steps")
    logger: tuple[str, ...] = spec(("console",), "Loggers; wandb needs a login on the node.")


@dataclass(frozen=True)
class Plan:
    """Everything decided so far. `ref` and `critic` are None while they follow the actor."""

    target: Target = Target()
    machine: Machine = Machine()
    model: Model = Model()
    architecture: Architecture | None = None
    critic_architecture: Architecture | None = None
    algorithm: Algorithm = Algorithm()
    data: Data = Data()
    actor: Fsdp = Fsdp()
    ref: Fsdp | None = None
    critic: Fsdp | None = None
    batches: Batches = Batches()
    rollout: Rollout = Rollout()
    placement: Placement = Placement()
    trainer: Trainer = Trainer()
    extra_overrides: tuple[tuple[str, Any], ...] = ()
    """verl keys of an opened file that no field above holds, written out again as they are."""

    @property
    def world_size(self) -> int:
        """Ranks of the actor's engine, which verl calls the world size; 1 while no GPU is known."""
        return self.ranks("actor")

    def ranks(self, role: Role) -> int:
        """Return the ranks a role runs on: its group's GPUs, else all of the machine; 1 while no GPU is known."""
        group = self.group(role)
        return max(1, group.nodes * group.gpus_per_node if group else self.machine.world_size)

    def gpus_of_node(self, role: Role) -> int:
        """Return the GPUs of one node that a role runs on; 1 while no GPU is known."""
        group = self.group(role)
        return max(1, group.gpus_per_node if group else self.machine.gpus_per_node)

    def group(self, role: Role) -> GpuGroup | None:
        """Return the group of GPUs a role lives on, None while all roles share the machine."""
        return next((group for group in self.placement.groups if role in group.roles), None)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles the algorithm needs, as verl 0.9.1 `trainer/ppo/utils.py` decides them."""
        roles: list[Role] = ["actor", "rollout"]
        if self.algorithm.use_kl_loss or self.algorithm.use_kl_in_reward:
            roles.append("ref")
        if self.algorithm.name == "ppo":
            roles.append("critic")
        if any(key in REWARD_MODEL and value is True for key, value in self.extra_overrides):
            roles.append("reward")
        return tuple(roles)

    def fsdp(self, role: Literal["actor", "ref", "critic"]) -> Fsdp:
        """Return the settings `role` runs with: its own, else the actor's."""
        own: Fsdp | None = getattr(self, role)
        return own if own is not None else self.actor

    def get(self, path: str) -> Any:
        """Return the value at a dotted path such as `critic.strategy`.

        Raises:
            PlanError: the path names no field.
        """
        spec_of(path)
        section, name = path.split(".")
        owner = self.fsdp(section) if section in ("ref", "critic") else getattr(self, section)  # type: ignore[arg-type]
        return getattr(owner, name)

    def replace(self, path: str, value: Any) -> Plan:
        """Return a Plan with one field changed; a first edit of `ref` or `critic` detaches it from the actor.

        Raises:
            PlanError: the path names no field, or the value is not of its type.
        """
        found = spec_of(path)
        try:
            converted = msgspec.convert(value, found.type, strict=True)
        except msgspec.ValidationError as error:
            raise PlanError(f"{path} = {value!r}: {error}. {found.help}") from error
        if found.minimum is not None and converted < found.minimum:
            raise PlanError(f"{path} = {value!r} is below its smallest value, {found.minimum:g}. {found.help}")
        if is_secret(name := path.rpartition(".")[2], converted):
            raise PlanError(
                f"{path} holds a key or password, which would stand in every file that is written. Export it as an "
                f"environment variable on the nodes instead, and leave it out here. {found.help}"
            )
        section = path.rpartition(".")[0]
        owner = self.fsdp(section) if section in ("ref", "critic") else getattr(self, section)  # type: ignore[arg-type]
        changed: dict[str, Any] = {section: dataclasses.replace(owner, **{name: converted})}
        return dataclasses.replace(self, **changed)


class PlanError(ValueError):
    """A field that does not exist, or a value it cannot have; the message is for the person."""


@dataclass(frozen=True)
class FieldSpec:
    """One editable field of the Plan, for widgets, flags and help."""

    path: str
    type: Any
    default: Any
    help: str
    unit: str
    choices: tuple[str, ...]
    minimum: float | None


def _choices(annotation: Any) -> tuple[str, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()


def _dataclass_of(annotation: Any) -> type | None:
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((option for option in options if dataclasses.is_dataclass(option)), None)  # type: ignore[return-value]


@functools.cache
def field_specs() -> dict[str, FieldSpec]:
    """Return every editable field by its dotted path, in the Plan's order."""
    found: dict[str, FieldSpec] = {}
    for section, annotation in typing.get_type_hints(Plan).items():
        owner = _dataclass_of(annotation)
        if owner is None or owner is Architecture:
            continue
        hints = typing.get_type_hints(owner)
        for entry in dataclasses.fields(owner):
            path = f"{section}.{entry.name}"
            found[path] = FieldSpec(
                path,
                hints[entry.name],
                entry.default,
                entry.metadata.get("help", ""),
                entry.metadata.get("unit", ""),
                _choices(hints[entry.name]),
                entry.metadata.get("minimum"),
            )
    return found


def spec_of(path: str) -> FieldSpec:
    """Return the spec of one field.

    Raises:
        PlanError: the path names no field; the message offers the nearest one.
    """
    try:
        return field_specs()[path]
    except KeyError:
        import difflib

        near = difflib.get_close_matches(path, field_specs(), n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise PlanError(f"{path} is not a field of the Plan.{hint}") from None


def parse_value(path: str, text: str) -> Any:
    """Read `text` as the type of the field at `path`: `true`, `1e-6`, `a,b` for a tuple.

    Raises:
        PlanError: the text is not of the field's type.
    """
    found = spec_of(path)
    value: Any = text
    if typing.get_origin(found.type) is tuple:
        value = [part.strip() for part in text.strip("[]()").split(",") if part.strip()]
    elif found.type is bool:
        value = text.lower()
    try:
        return msgspec.convert(value, found.type, strict=False)
    except msgspec.ValidationError as error:
        offered = f" Choose one of: {', '.join(found.choices)}." if found.choices else ""
        raise PlanError(f"{path} = {text!r}: {error}.{offered} {found.help}") from error
