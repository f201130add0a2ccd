"""The smallest change of a Plan that makes it fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce

from wizard.findings import Change, Fix
from wizard.fixing import apply_fix
from wizard.memory.predict import actor_update_phase, largest, phases_of
from wizard.memory.prediction import PhaseName, PhasePeak
from wizard.memory.roles import update_workload
from wizard.plan import Plan

HIGHEST_TOKENS = 2**20
OFFERED = 4
"""Remedies shown at most."""


def token_budget(plan: Plan) -> int | None:
    """Return the most tokens a micro-batch of the actor's update may hold on one GPU; None without a machine."""
    memory = plan.machine.gpu_memory_bytes
    if not memory:
        return None

    def holds(tokens: int) -> bool:
        return actor_update_phase(with_tokens(plan, tokens)).needed_bytes <= memory

    # A larger budget than the mini-batch holds changes nothing.
    return largest(holds, HIGHEST_TOKENS)


def with_tokens(plan: Plan, tokens: int) -> Plan:
    """Return the Plan with micro-batches of exactly `tokens` on one GPU, as if there were samples enough."""
    batches = replace(plan.batches, dynamic=True, max_tokens_per_gpu=tokens, mini_batch_size=HIGHEST_TOKENS)
    return replace(plan, batches=batches)


def remedies(plan: Plan, phases: tuple[PhasePeak, ...], budget: int | None) -> tuple[Fix, ...]:
    """Return changes after which every phase fits, the smallest first; empty when it fits or nothing helps."""
    memory = plan.machine.gpu_memory_bytes
    if not memory or _fits(phases, memory):
        return ()
    too_big = {phase.name for phase in phases if not phase.fits(memory)}
    lacks = any(phase.lacking_bytes for phase in phases)
    found: list[Fix] = []
    tried: list[Fix] = []
    for fix in _candidates(plan, too_big, budget, lacks=lacks):
        if _fits(phases_of(_apply(plan, fix)), memory):
            found.append(fix)
            if len(found) == OFFERED:
                break
        elif not found:
            tried.append(fix)
            if len(tried) > 1 and _fits(phases_of(_apply(plan, *tried)), memory):
                found.append(_needed(plan, tried, memory))
    return tuple(found)


def _needed(plan: Plan, fixes: list[Fix], memory: int) -> Fix:
    """Return those of several fixes, together enough, that cannot be spared; the costliest come last and are tried
    last, since the one that made the others enough is among them."""
    needed = list(fixes)
    for fix in fixes:
        rest = [other for other in needed if other is not fix]
        if rest and _fits(phases_of(_apply(plan, *rest)), memory):
            needed = rest
    changes = {change.field: change for fix in needed for change in fix.changes}
    return Fix(" and ".join(fix.label for fix in needed), tuple(changes.values()))


def _candidates(plan: Plan, too_big: set[PhaseName], budget: int | None, *, lacks: bool) -> Iterator[Fix]:
    """Changes in the order of what they cost: nothing, then speed, then a different run."""
    actor, updates = plan.actor, bool(too_big & {"actor_update", "critic_update"})
    if updates:
        if actor.no_sync and update_workload(plan, "actor").micro_batches > 1:
            yield _fix("reduce gradients in every micro-batch", ("actor.no_sync", False))
        if plan.algorithm.entropy_coef and not actor.entropy_chunking:
            yield _fix("compute entropy in chunks", ("actor.entropy_chunking", True))
        if not plan.model.gradient_checkpointing:
            yield _fix("turn on gradient checkpointing", ("model.gradient_checkpointing", True))
        yield from _fewer_tokens(plan, budget)
    if too_big & {"log_prob", "ref_log_prob"}:
        yield from _fewer_scored_tokens(plan)
    if too_big & {"rollout", "weight_sync"}:
        yield from _other_rollout(plan, lacks)
    if too_big - {"actor_update"} and not actor.offload_policy:
        if not actor.optimizer_offload:
            yield _fix("offload the optimizer between phases", ("actor.optimizer_offload", True))
        if not (actor.param_offload and actor.optimizer_offload):
            yield _fix(
                "offload parameters and optimizer between phases",
                ("actor.param_offload", True),
                ("actor.optimizer_offload", True),
            )
    if updates or "log_prob" in too_big or "ref_log_prob" in too_big:
        if not plan.model.fused_kernels:
            yield _fix("compute log-probabilities without logits", ("model.fused_kernels", True))
        if updates and not plan.model.activation_offload:
            yield _fix("offload activations", ("model.activation_offload", True))
        if actor.strategy == "fsdp2" and not actor.offload_policy:
            yield _fix("keep parameters, gradients and optimizer on the host", ("actor.offload_policy", True))
        if not plan.model.lora_rank:
            yield _fix("train LoRA adapters of rank 32", ("model.lora_rank", 32))
    nodes = plan.machine.nodes
    for factor in (2, 4, 8):
        yield _fix(f"use {factor * nodes} nodes", ("machine.nodes", factor * nodes))


def _fewer_tokens(plan: Plan, budget: int | None) -> Iterator[Fix]:
    longest = plan.data.longest_sequence
    if not budget:
        return
    if plan.batches.dynamic:
        # verl refuses a budget that one sample does not fit.
        if plan.batches.max_tokens_per_gpu > budget >= longest / plan.actor.ulysses_size:
            rounded = budget // 256 * 256 if budget // 256 * 256 * plan.actor.ulysses_size >= longest else budget
            yield _fix(f"hold {rounded} tokens a micro-batch", ("batches.max_tokens_per_gpu", rounded))
        return
    samples = int(budget * plan.actor.ulysses_size // longest)
    if 1 <= samples < plan.batches.micro_batch_size_per_gpu:
        yield _fix(f"hold {samples} samples a micro-batch", ("batches.micro_batch_size_per_gpu", samples))


def _fewer_scored_tokens(plan: Plan) -> Iterator[Fix]:
    longest = plan.data.longest_sequence
    batches = plan.batches
    for share in (2, 4, 8):
        if batches.dynamic:
            tokens = batches.log_prob_max_tokens_per_gpu // share
            if tokens * plan.actor.ulysses_size >= longest:
                yield _fix(f"score {tokens} tokens a micro-batch", ("batches.log_prob_max_tokens_per_gpu", tokens))
        elif batches.log_prob_micro_batch_size_per_gpu // share:
            samples = batches.log_prob_micro_batch_size_per_gpu // share
            yield _fix(f"score {samples} samples a micro-batch", ("batches.log_prob_micro_batch_size_per_gpu", samples))


def _other_rollout(plan: Plan, lacks: bool) -> Iterator[Fix]:
    """Split the weights further, then give the engine more of the GPU when it lacks memory, less when all do."""
    tp = plan.rollout.tensor_parallel_size
    while 2 * tp <= max(1, plan.machine.gpus_per_node):
        tp *= 2
        yield _fix(f"share the rollout's weights over {tp} GPUs", ("rollout.tensor_parallel_size", tp))
    now = plan.rollout.gpu_memory_utilization
    for share in (0.6, 0.7, 0.8) if lacks else (0.6, 0.5, 0.4, 0.3):
        if (share > now) is lacks and share != now:
            yield _fix(f"give the rollout {share:.0%} of the GPU", ("rollout.gpu_memory_utilization", share))


def _fix(label: str, *changes: tuple[str, object]) -> Fix:
    return Fix(label, tuple(Change(field, value) for field, value in changes))


def _apply(plan: Plan, *fixes: Fix) -> Plan:
    return reduce(apply_fix, fixes, plan)


def _fits(phases: Iterable[PhasePeak], memory: int) -> bool:
    return all(phase.fits(memory) for phase in phases)
