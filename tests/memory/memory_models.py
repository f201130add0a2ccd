"""Architectures of measured shapes, built by hand as the inspector would tell them."""

from __future__ import annotations

from typing import Any

from wizard.facts import Architecture, LayerClass, ModuleGroup


def _group(name: str, cls: str, repeat: int, own: int, *children: ModuleGroup, **more: Any) -> ModuleGroup:
    parameters = own + sum(child.parameters * child.repeat for child in children)
    return ModuleGroup(name, cls, repeat, parameters, own, children, **more)


def qwen2(
    *, layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, vocab: int, tied: bool
) -> Architecture:
    """Qwen2: biases on q, k and v, two RMSNorms a layer."""
    head_dim = hidden // heads
    q, kv = heads * head_dim, kv_heads * head_dim
    attention = _group(
        "self_attn", "Qwen2Attention", 1, 0,
        _group("q_proj", "Linear", 1, hidden * q + q, has_weight=True),
        _group("k_proj", "Linear", 2, hidden * kv + kv, has_weight=True),
        _group("o_proj", "Linear", 1, hidden * q, has_weight=True),
    )  # fmt: skip
    mlp = _group("mlp", "Qwen2MLP", 1, 0, _group("gate_proj", "Linear", 3, hidden * intermediate, has_weight=True))
    layer = _group(
        "0", "Qwen2DecoderLayer", layers, 0,
        attention, mlp, _group("input_layernorm", "Qwen2RMSNorm", 2, hidden, has_weight=True),
    )  # fmt: skip
    model = _group(
        "model", "Qwen2Model", 1, 0,
        _group("embed_tokens", "Embedding", 1, vocab * hidden, has_weight=True),
        _group("layers", "ModuleList", 1, 0, layer),
        _group("norm", "Qwen2RMSNorm", 1, hidden, has_weight=True),
    )  # fmt: skip
    head = ModuleGroup(
        *("lm_head", "Linear", 1),
        parameters=0 if tied else vocab * hidden,
        own_parameters=0 if tied else vocab * hidden,
        reused_parameters=vocab * hidden if tied else 0,
        has_weight=True,
    )
    root = _group("", "Qwen2ForCausalLM", 1, 0, model, head)
    return Architecture(
        model_type="qwen2",
        class_name="Qwen2ForCausalLM",
        parameters=root.parameters,
        active_parameters=root.parameters,
        tied_embeddings=tied,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        max_position_embeddings=32768,
        dtype="bfloat16",
        no_split_modules=("Qwen2DecoderLayer",),
        layer_classes=(
            LayerClass("Qwen2DecoderLayer", layers, layer.parameters * layers, layer.parameters, "block", True, True),
        ),
        modules=root,
        largest_parameter=max(vocab * hidden, hidden * intermediate),
    )


def qwen2_7b() -> Architecture:
    """Qwen2.5-7B's shape."""
    return qwen2(layers=28, hidden=3584, intermediate=18944, heads=28, kv_heads=4, vocab=152064, tied=False)
