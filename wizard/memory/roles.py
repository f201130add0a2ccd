"""From a Plan to the shape and the step of each role that trains or scores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from wizard.facts import Architecture
from wizard.memory.architecture import Options, shape_of
from wizard.memory.prediction import PredictionError
from wizard.memory.settings import DTYPE_BYTES, EntropyPath, LossPath, Step
from wizard.memory.shapes import ModelShape
from wizard.plan import Fsdp, Plan, Role

EngineRole = Literal["actor", "ref", "critic"]
TrainedRole = Literal["actor", "critic"]
ScoringRole = Literal["actor", "ref"]


@dataclass(frozen=True)
class Workload:
    """Tokens of one micro-batch on one rank, and how many micro-batches one update accumulates."""

    tokens: int
    micro_batches: int


@dataclass(frozen=True)
class Exact:
    """What a caller fixes in place of what the Plan implies; None leaves the Plan's."""

    tokens: int | None = None
    """Tokens of one micro-batch on one rank."""
    micro_batches: int | None = None
    loss: LossPath | None = None
    entropy: EntropyPath | None = None

    def applied(self, plan: Plan, step: Step) -> Step:
        """Return the step with the fixed values."""
        fixed = {name: value for name, value in vars(self).items() if value is not None}
        changed = replace(step, **fixed)
        return replace(changed, mask_bytes=changed.tokens * _mask_width(plan, changed.tokens))


def colocated(plan: Plan, first: Role, second: Role) -> bool:
    """Return whether two roles share GPUs."""
    groups = plan.placement.groups
    return not groups or any(first in group.roles and second in group.roles for group in groups)


def shard_ranks(fsdp: Fsdp, world: int) -> int:
    """Return the ranks one copy is sharded over (verl 0.9.1 `workers/engine/fsdp/utils.py` create_device_mesh)."""
    return fsdp.fsdp_size if 0 < fsdp.fsdp_size < world else world


def architecture_of(plan: Plan, role: Role) -> Architecture:
    """Return the architecture a role runs.

    Raises:
        PredictionError: the model has not been inspected.
    """
    own = plan.critic_architecture if role == "critic" else None
    found = own or plan.architecture
    if found is None:
        raise PredictionError(
            f"model.id = {plan.model.id!r} has not been inspected, so its memory cannot be predicted: "
            "inspect the model first."
        )
    return found


def role_shape(plan: Plan, role: EngineRole, tokens: int = 0) -> ModelShape:
    """Return the model's shape as the role's engine builds it, for micro-batches of `tokens`."""
    fsdp = plan.fsdp(role)
    lora = plan.model.lora_rank if role != "ref" else 0
    return shape_of(
        architecture_of(plan, role),
        fsdp,
        Options(
            compute_bytes=DTYPE_BYTES[fsdp.param_dtype],
            liger=plan.model.liger,
            lora_rank=lora,
            ulysses=fsdp.ulysses_size,
            value_head=role == "critic",
            mask_width=_mask_width(plan, tokens),
            keeps_scores=plan.model.attention == "eager",
        ),
    )


def update_step(plan: Plan, role: TrainedRole) -> Step:
    """Return one optimizer update of a role."""
    fsdp, model = plan.fsdp(role), plan.model
    world = plan.ranks(role)
    work = update_workload(plan, role)
    actor = role == "actor"
    return Step(
        tokens=work.tokens,
        ranks=shard_ranks(fsdp, world),
        strategy=fsdp.strategy,
        micro_batches=work.micro_batches,
        gradient_checkpointing=model.gradient_checkpointing,
        activation_offload=model.activation_offload,
        reshard_after_forward=fsdp.reshard_after_forward,
        master_bytes=DTYPE_BYTES[fsdp.master_dtype],
        compute_bytes=DTYPE_BYTES[fsdp.param_dtype],
        reduce_bytes=DTYPE_BYTES[fsdp.reduce_dtype],
        loss=_loss_path(plan) if actor else "value",
        entropy=_entropy_path(plan, fsdp) if actor and plan.algorithm.entropy_coef else "none",
        entropy_checkpointing=fsdp.entropy_checkpointing,
        no_sync=fsdp.no_sync,
        offload_policy=fsdp.offload_policy and fsdp.strategy == "fsdp2",
        scaled_logits=actor and plan.rollout.temperature != 1.0,
        mask_bytes=work.tokens * _mask_width(plan, work.tokens),
    )


def log_prob_step(plan: Plan, role: ScoringRole) -> Step:
    """Return one log-prob pass; the actor's always computes entropy (verl 0.9.1 `ray_trainer.py`)."""
    fsdp = plan.fsdp(role)
    world = plan.ranks(role)
    tokens = _tokens(
        plan, fsdp, plan.batches.log_prob_max_tokens_per_gpu, plan.batches.log_prob_micro_batch_size_per_gpu,
        plan.batches.train_batch_size, world,
    ).tokens  # fmt: skip
    forward_only = role == "ref"
    return Step(
        tokens=tokens,
        ranks=shard_ranks(fsdp, world),
        strategy=fsdp.strategy,
        gradient_checkpointing=plan.model.gradient_checkpointing,
        reshard_after_forward=fsdp.reshard_after_forward,
        master_bytes=DTYPE_BYTES[fsdp.master_dtype],
        compute_bytes=DTYPE_BYTES[fsdp.param_dtype],
        reduce_bytes=DTYPE_BYTES[fsdp.reduce_dtype],
        loss=_loss_path(plan),
        entropy="none" if forward_only else _entropy_path(plan, fsdp),
        # verl forces CPU offload on forward-only engines, under both strategies.
        offload_policy=forward_only or (fsdp.offload_policy and fsdp.strategy == "fsdp2"),
        scaled_logits=plan.rollout.temperature != 1.0,
        log_prob_optimizer_resident=not fsdp.optimizer_offload,
        mask_bytes=tokens * _mask_width(plan, tokens),
    )


def update_workload(plan: Plan, role: TrainedRole) -> Workload:
    """Return the largest micro-batch of an update and how many there are."""
    batches, fsdp = plan.batches, plan.fsdp(role)
    world = plan.ranks(role)
    if role == "critic":
        # The critic's engine reads the token budget whatever use_dynamic_bsz says.
        return _tokens(plan, fsdp, batches.critic_max_tokens_per_gpu, 0, batches.mini_batch_size, world)
    return _tokens(
        plan, fsdp, batches.max_tokens_per_gpu, batches.micro_batch_size_per_gpu, batches.mini_batch_size, world
    )


def _tokens(plan: Plan, fsdp: Fsdp, budget: int, samples: int, prompts: int, world: int) -> Workload:
    """Worst case: every sample as long as allowed. A rank holds 1/ulysses of its micro-batch."""
    longest = plan.data.longest_sequence
    groups = max(1, world // max(1, fsdp.ulysses_size))
    per_group = max(1, prompts * plan.rollout.n // groups)
    if plan.batches.dynamic or not samples:
        total = per_group * longest / fsdp.ulysses_size
        # rearrange_micro_batches balances samples over ceil(total / budget) micro-batches.
        count = max(1, math.ceil(total / budget))
        return Workload(max(1, min(budget, math.ceil(total))), count)
    held = min(samples, per_group)
    return Workload(max(1, math.ceil(held * longest / fsdp.ulysses_size)), max(1, math.ceil(per_group / held)))


def _loss_path(plan: Plan) -> LossPath:
    if plan.model.fused_kernels:
        return "fused"
    # verl takes flash-attn's cross entropy where flash-attn can be imported, else its own loop over rows.
    return "flash" if plan.model.attention == "flash_attention_2" else "v2"


def _entropy_path(plan: Plan, fsdp: Fsdp) -> EntropyPath:
    if plan.model.fused_kernels:
        return "none"
    compiled = all(not name.endswith("use_torch_compile") or value for name, value in plan.extra_overrides)
    if fsdp.entropy_chunking:
        return "compiled_chunked" if compiled else "chunked"
    return "compiled" if compiled else "eager"


def _mask_width(plan: Plan, tokens: int) -> int:
    """Keys a query's row of the attention mask has: without flash attention a packed micro-batch needs a mask of all
    its tokens, padded samples one each (transformers `masking_utils.py`)."""
    if plan.model.attention == "flash_attention_2":
        return 0
    longest = plan.data.longest_sequence
    return tokens if plan.model.use_remove_padding else min(tokens, longest)
