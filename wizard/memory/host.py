"""Host memory of one node over a run: loading, offloaded state, the object store, checkpoints."""

from __future__ import annotations

from wizard.memory.roles import EngineRole, architecture_of, role_shape, shard_ranks
from wizard.memory.settings import DTYPE_BYTES
from wizard.plan import Fsdp, Plan

PROCESS_BYTES = 3 * 2**30
"""Resident set of one worker with torch, transformers and CUDA loaded; an estimate (torch and transformers alone took
0.34 GiB on a CPU)."""
TENSORS_PER_TOKEN = 8
"""Tensors of one element a token that verl's batch carries through the object store: ids, masks, positions,
log-probabilities, advantages (verl 0.9.1 `trainer/ppo/ray_trainer.py`)."""


def host_memory(plan: Plan) -> dict[str, int]:
    """Return bytes of one node by cause, at the moment that needs most.

    Loading and saving a checkpoint never coincide, so only the larger one is in the sum. Roles on GPUs of their own
    count as if their groups met on this node.
    """
    engines: tuple[EngineRole, ...] = ("actor", "ref", "critic")
    # With LoRA the reference is the actor with its adapters switched off.
    roles = [role for role in engines if role in plan.roles and not (role == "ref" and plan.model.lora_rank)]
    gpus = max(1, plan.machine.gpus_per_node)
    trainers, servers = plan.gpus_of_node("actor"), plan.gpus_of_node("rollout")
    offloaded = loading = saving = 0.0
    for role in roles:
        fsdp, shape = plan.fsdp(role), role_shape(plan, role)
        ranks = shard_ranks(fsdp, plan.ranks(role))
        master, members = DTYPE_BYTES[fsdp.master_dtype], plan.gpus_of_node(role)
        share = members / ranks
        offloaded += master * share * _offloaded_elements(fsdp, shape.parameters, shape.trainable, scores=role == "ref")
        # verl builds a tied model on the CPU of every rank, any other on the first rank of each shard group.
        tied = architecture_of(plan, role).tied_embeddings
        loaders = members if tied else max(1, members // ranks)
        loading = max(loading, float(loaders * master * shape.parameters))
        if role != "ref" and plan.trainer.save_freq > 0:
            saving = max(saving, master * share * (shape.parameters + 2 * shape.trainable))
    kept = _activations(plan) * trainers if plan.model.activation_offload else 0.0
    replicas = max(1, servers // plan.rollout.tensor_parallel_size)
    sleeping = 0.0
    if plan.model.lora_rank and plan.rollout.free_cache_engine:
        # With adapters vLLM sleeps at level 1, which keeps the base weights on the host.
        sleeping = 2.0 * architecture_of(plan, "actor").parameters * replicas
    causes = {
        "processes": float(PROCESS_BYTES * (2 * gpus + 2)),
        "offloaded state": offloaded,
        "sleeping rollout weights": sleeping,
        "offloaded activations": kept,
        "object store": float(_batch_bytes(plan)),
        "loading weights" if loading >= saving else "checkpoint": max(loading, saving),
    }
    return {name: int(size) for name, size in causes.items() if size}


def _offloaded_elements(fsdp: Fsdp, parameters: int, trainable: int, *, scores: bool) -> float:
    """Elements of master dtype that live on the host for one copy of the model."""
    if scores:
        return parameters
    if fsdp.offload_policy and fsdp.strategy == "fsdp2":
        return parameters + 3 * trainable
    return (parameters if fsdp.param_offload else 0) + (2 * trainable if fsdp.optimizer_offload else 0)


def _activations(plan: Plan) -> float:
    architecture = architecture_of(plan, "actor")
    tokens = plan.batches.max_tokens_per_gpu
    return float(DTYPE_BYTES[plan.actor.param_dtype] * architecture.hidden_size * architecture.num_layers * tokens)


def _batch_bytes(plan: Plan) -> int:
    samples = plan.batches.train_batch_size * plan.rollout.n
    length = plan.data.longest_sequence
    return samples * length * TENSORS_PER_TOKEN * 8
