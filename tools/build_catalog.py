"""Writes `wizard/model/catalog.json.gz`: architectures of well-known models, read off meta-device builds.

The configs below are the models' published config.json values that decide shapes. Each is built by transformers;
nothing is taken from a list. Run it with the pinned transformers: `python tools/build_catalog.py`.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from typing import Any

from transformers import CONFIG_MAPPING

from wizard.model.architecture import architecture_of
from wizard.model.catalog import FILE
from wizard.model.tiny import TINY_CONFIG, TINY_ID

Config = dict[str, Any]


def qwen2(hidden: int, ffn: int, layers: int, heads: int, kv: int, tied: bool, vocab: int = 152064) -> Config:
    return {
        "model_type": "qwen2", "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "tie_word_embeddings": tied, "vocab_size": vocab,
        "max_position_embeddings": 32768,
    }  # fmt: skip


def qwen3(hidden: int, ffn: int, layers: int, heads: int, tied: bool, kv: int = 8) -> Config:
    return {
        "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 128, "tie_word_embeddings": tied,
        "vocab_size": 151936, "max_position_embeddings": 40960,
    }  # fmt: skip


def qwen3_moe(hidden: int, ffn: int, expert: int, layers: int, heads: int, kv: int) -> Config:
    return {
        "model_type": "qwen3_moe", "hidden_size": hidden, "intermediate_size": ffn, "moe_intermediate_size": expert,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "tie_word_embeddings": False, "vocab_size": 151936, "max_position_embeddings": 40960,
    }  # fmt: skip


def llama(hidden: int, ffn: int, layers: int, heads: int, tied: bool = False, head_dim: int = 128) -> Config:
    return {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": head_dim, "tie_word_embeddings": tied,
        "vocab_size": 128256, "max_position_embeddings": 131072,
    }  # fmt: skip


def gemma3(hidden: int, ffn: int, layers: int, heads: int, kv: int, head_dim: int) -> Config:
    text = {
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": head_dim, "vocab_size": 262208, "max_position_embeddings": 131072,
    }  # fmt: skip
    vision = {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
        "image_size": 896, "patch_size": 14, "model_type": "siglip_vision_model", "vision_use_head": False,
    }  # fmt: skip
    return {"model_type": "gemma3", "text_config": text, "vision_config": vision, "tie_word_embeddings": True}


def qwen25_vl(hidden: int, ffn: int, layers: int, heads: int, kv: int, tied: bool, vocab: int) -> Config:
    text = qwen2(hidden, ffn, layers, heads, kv, tied, vocab) | {"max_position_embeddings": 128000}
    text["model_type"] = "qwen2_5_vl_text"
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    vision = {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": hidden,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    return {
        "model_type": "qwen2_5_vl", "text_config": text, "vision_config": vision, "tie_word_embeddings": tied,
        "vocab_size": vocab,
    }  # fmt: skip


def gpt_oss(layers: int, experts: int) -> Config:
    return {
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": layers,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": experts,
        "num_experts_per_tok": 4, "vocab_size": 201088, "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    }  # fmt: skip


GEMMA3_1B: Config = {
    "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
    "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip
MISTRAL_7B: Config = {
    "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32768,
    "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V3: Config = {"model_type": "deepseek_v3", "max_position_embeddings": 163840}
"""transformers' own defaults of this type are DeepSeek-V3's."""

MODELS: dict[str, tuple[str, Config]] = {
    "Qwen/Qwen2.5-0.5B-Instruct": ("Qwen2.5 0.5B", qwen2(896, 4864, 24, 14, 2, True, 151936)),
    "Qwen/Qwen2.5-1.5B-Instruct": ("Qwen2.5 1.5B", qwen2(1536, 8960, 28, 12, 2, True, 151936)),
    "Qwen/Qwen2.5-3B-Instruct": ("Qwen2.5 3B", qwen2(2048, 11008, 36, 16, 2, True, 151936)),
    "Qwen/Qwen2.5-7B-Instruct": ("Qwen2.5 7B", qwen2(3584, 18944, 28, 28, 4, False)),
    "Qwen/Qwen2.5-14B-Instruct": ("Qwen2.5 14B", qwen2(5120, 13824, 48, 40, 8, False)),
    "Qwen/Qwen2.5-32B-Instruct": ("Qwen2.5 32B", qwen2(5120, 27648, 64, 40, 8, False)),
    "Qwen/Qwen2.5-72B-Instruct": ("Qwen2.5 72B", qwen2(8192, 29568, 80, 64, 8, False)),
    "Qwen/Qwen3-0.6B": ("Qwen3 0.6B", qwen3(1024, 3072, 28, 16, True)),
    "Qwen/Qwen3-1.7B": ("Qwen3 1.7B", qwen3(2048, 6144, 28, 16, True)),
    "Qwen/Qwen3-4B": ("Qwen3 4B", qwen3(2560, 9728, 36, 32, True)),
    "Qwen/Qwen3-8B": ("Qwen3 8B", qwen3(4096, 12288, 36, 32, False)),
    "Qwen/Qwen3-14B": ("Qwen3 14B", qwen3(5120, 17408, 40, 40, False)),
    "Qwen/Qwen3-32B": ("Qwen3 32B", qwen3(5120, 25600, 64, 64, False)),
    "Qwen/Qwen3-30B-A3B": ("Qwen3 30B-A3B (MoE)", qwen3_moe(2048, 6144, 768, 48, 32, 4)),
    "Qwen/Qwen3-235B-A22B": ("Qwen3 235B-A22B (MoE)", qwen3_moe(4096, 12288, 1536, 94, 64, 4)),
    "meta-llama/Llama-3.1-8B-Instruct": ("Llama 3.1 8B", llama(4096, 14336, 32, 32)),
    "meta-llama/Llama-3.1-70B-Instruct": ("Llama 3.1 70B", llama(8192, 28672, 80, 64)),
    "meta-llama/Llama-3.2-1B-Instruct": ("Llama 3.2 1B", llama(2048, 8192, 16, 32, True, 64)),
    "meta-llama/Llama-3.2-3B-Instruct": ("Llama 3.2 3B", llama(3072, 8192, 28, 24, True)),
    "meta-llama/Llama-3.3-70B-Instruct": ("Llama 3.3 70B", llama(8192, 28672, 80, 64)),
    "mistralai/Mistral-7B-Instruct-v0.3": ("Mistral 7B", MISTRAL_7B),
    "google/gemma-3-1b-it": ("Gemma 3 1B", GEMMA3_1B),
    "google/gemma-3-4b-it": ("Gemma 3 4B", gemma3(2560, 10240, 34, 8, 4, 256)),
    "google/gemma-3-12b-it": ("Gemma 3 12B", gemma3(3840, 15360, 48, 16, 8, 256)),
    "google/gemma-3-27b-it": ("Gemma 3 27B", gemma3(5376, 21504, 62, 32, 16, 128)),
    "deepseek-ai/DeepSeek-V3": ("DeepSeek-V3 671B (MoE)", DEEPSEEK_V3),
    "openai/gpt-oss-20b": ("gpt-oss 20B (MoE)", gpt_oss(24, 32)),
    "openai/gpt-oss-120b": ("gpt-oss 120B (MoE)", gpt_oss(36, 128)),
    "Qwen/Qwen2.5-VL-3B-Instruct": ("Qwen2.5-VL 3B", qwen25_vl(2048, 11008, 36, 16, 2, True, 151936)),
    "Qwen/Qwen2.5-VL-7B-Instruct": ("Qwen2.5-VL 7B", qwen25_vl(3584, 18944, 28, 28, 4, False, 152064)),
}


def settings() -> dict[str, tuple[str, Config]]:
    """Return `{id: (title, config.json entries)}` of every catalogued model."""
    return {
        TINY_ID: ("tiny: built in, needs no download", TINY_CONFIG),
        **{model: (title, {"dtype": "bfloat16", **entries}) for model, (title, entries) in MODELS.items()},
    }


def build(entries: Config) -> Any:
    """Return transformers' config made from config.json entries."""
    return CONFIG_MAPPING[entries["model_type"]].from_dict(dict(entries))


def main() -> None:
    """Build every model and write the catalogue; the same versions give the same bytes."""
    catalog = {
        model: {"title": title, "architecture": dataclasses.asdict(architecture_of(build(entries))), "config": entries}
        for model, (title, entries) in settings().items()
    }
    text = json.dumps(catalog, separators=(",", ":"))
    FILE.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    for model, entry in catalog.items():
        print(f"{model:40} {entry['architecture']['parameters']:>16,}")


if __name__ == "__main__":
    main()
