"""Small configs of families whose modules differ in ways that matter to wrap policies."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
}
MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
    "num_key_value_heads": 4,
}
SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
}
MROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}}

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {**SMALL, "tie_word_embeddings": False}),
    "qwen2-tied": ("qwen2", {**SMALL, "tie_word_embeddings": True}),
    "qwen3-moe": ("qwen3_moe", {**SMALL, **MOE, "tie_word_embeddings": False}),
    "deepseek-v3": ("deepseek_v3", {**SMALL, **MLA}),
    "gpt-oss": ("gpt_oss", {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 256, "n_positions": 128}),
    "jamba": ("jamba", {**SMALL, "num_hidden_layers": 8, "num_experts": 4, "mamba_dt_rank": 4}),
    "gemma3-vision": ("gemma3", {"text_config": SMALL, "vision_config": SIGLIP}),
    "llava": (
        "llava",
        {
            "text_config": {"model_type": "llama", **SMALL, "tie_word_embeddings": False},
            "vision_config": {**SIGLIP, "model_type": "clip_vision_model", "projection_dim": 32},
            "tie_word_embeddings": False,
        },
    ),
    "qwen2.5-vl": (
        "qwen2_5_vl",
        {"text_config": {**SMALL, **MROPE}, "vision_config": QWEN_VISION, "tie_word_embeddings": False},
    ),
}


def small_config(name: str) -> Any:
    """Return a transformers config of one of the SETTINGS."""
    model_type, settings = SETTINGS[name]
    return CONFIG_MAPPING[model_type](**settings)
