"""What the inference engine takes from a GPU, and what the weight sync needs."""

from __future__ import annotations

from dataclasses import dataclass

from wizard.facts import Architecture
from wizard.plan import Plan

BF16 = 2
CUDA_CONTEXT_BYTES = 648_871_936
"""A process's CUDA context with torch 2.11 (CUDA 13) on an H200: `context_bytes` in measurements/h200.json."""
CUDA_GRAPH_BYTES = 2**30
"""vLLM's captured graphs, which it allocates beside its share; an estimate, its log says 0.5 to 2 GiB."""
WEIGHT_BUCKET_BYTES = 2048 * 2**20
"""verl 0.9.1 `rollout.checkpoint_engine.update_weights_bucket_megabytes`, one buffer on the sender's GPU."""


@dataclass(frozen=True)
class Engine:
    """The inference engine's memory on one GPU."""

    weights_bytes: int
    kv_cache_bytes: int
    graph_bytes: int
    kv_cache_tokens: int
    """Tokens the cache holds on one engine replica."""
    lacking_bytes: int
    """Bytes the share is too small by for the weights and the cache of one longest sequence; vLLM then refuses."""


def engine_of(plan: Plan, architecture: Architecture) -> Engine:
    """Return the engine's memory: weights over TP, the rest of its share for the cache.

    Latent attention caches one latent a token that TP cannot split, which `kv_bytes_per_token` below a kv head's
    width tells.
    """
    tp = plan.rollout.tensor_parallel_size
    share = int(plan.rollout.gpu_memory_utilization * plan.machine.gpu_memory_bytes)
    weights = BF16 * architecture.parameters // tp
    cache = max(0, share - weights)
    per_token = architecture.kv_bytes_per_token or (
        2 * BF16 * architecture.num_layers * architecture.num_key_value_heads * architecture.head_dim
    )
    splits = min(tp, architecture.num_key_value_heads) or 1
    tokens = int(cache * splits / per_token) if per_token else 0
    graphs = 0 if plan.rollout.enforce_eager else CUDA_GRAPH_BYTES
    longest = plan.rollout.max_model_len or plan.data.longest_sequence
    lacking = max(0, weights + longest * per_token // splits - share)
    return Engine(weights, cache, graphs, tokens, lacking)
