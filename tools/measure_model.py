"""The transformers model of a measured configuration, and its attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import transformers
from measure_cases import Case
from torch import nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "sdpa_causal"


def _attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None,
    dropout: float = 0.0, scaling: float | None = None, **more: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Causal attention by torch's flash kernel, native GQA, never a mask: what flash-attn allocates. verl's Ulysses
    exchanges heads and sequence around it (`models/transformers/monkey_patch.py`)."""
    group = getattr(module.config, "ulysses_group", None)
    if group is not None:
        from transformers.models.llama.modeling_llama import repeat_kv
        from verl.utils.ulysses import SeqAllToAll

        size = dist.get_world_size(group)
        repeats = max(size // key.shape[1], 1)
        key, value = repeat_kv(key, repeats), repeat_kv(value, repeats)
        query, key, value = (SeqAllToAll.apply(group, each, 1, 2) for each in (query, key, value))
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION]):
        out = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
        )
    out = out.transpose(1, 2).contiguous()
    if group is not None:
        from verl.utils.ulysses import SeqAllToAll

        out = SeqAllToAll.apply(group, out, 1, 2)
    return out, None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, lambda *arguments, **named: None)


def config_of(case: Case) -> Any:
    """Return the transformers config of a case's shape."""
    common = {
        "vocab_size": case.vocab, "hidden_size": case.hidden, "intermediate_size": case.intermediate,
        "num_hidden_layers": case.layers, "num_attention_heads": case.heads, "num_key_value_heads": case.kv_heads,
        "head_dim": case.head_dim, "tie_word_embeddings": case.tied, "use_cache": False,
        "max_position_embeddings": max(32768, case.tokens * case.ulysses),
    }  # fmt: skip
    classes = {
        "qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config, "llama": transformers.LlamaConfig,
        "gemma3": transformers.Gemma3TextConfig, "qwen3_moe": transformers.Qwen3MoeConfig,
    }  # fmt: skip
    if case.family == "qwen3_moe":
        common |= {
            "num_experts": case.experts, "num_experts_per_tok": case.experts_per_token,
            "moe_intermediate_size": case.expert_intermediate, "output_router_logits": False,
        }  # fmt: skip
    if case.family == "qwen2":
        common.pop("head_dim")
    if case.family == "gemma3":
        common["sliding_window"] = 512
    config = classes[case.family](**common)
    config._attn_implementation = "sdpa" if case.packed_mask else ATTENTION
    if case.mode == "value":
        config.num_labels = 1
        config.classifier_dropout = config.hidden_dropout = 0.0
    return config
