"""From a transformers config to an `Architecture`, by building the model on the meta device. Target interpreter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import init

from wizard.facts import Architecture, LayerClass, ModuleGroup
from wizard.model.detect import detect_blocks, is_block_like, is_container, is_embedding
from wizard.model.errors import ModelError
from wizard.model.trace import saved_bytes_per_token
from wizard.model.tree import dtype_name, largest_parameter, module_tree

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_USED = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k")
_HEADS = ("lm_head", "embed_out", "score", "classifier")
KV_DTYPE_BYTES = 2
_NEEDS = {
    "actor": "language model for this model_type, so verl cannot train it.",
    "critic": "token classification model for this model_type, which verl's critic is. Choose another model.critic_id, "
    "or install trl, whose value head verl then puts on the language model.",
}


def architecture_of(
    config: Any, *, trust_remote_code: bool = False, role: str = "actor", has_code: bool = False
) -> Architecture:
    """Build `config` on the meta device and read everything off it. Takes no memory for weights.

    Raises:
        ModelError: no language model can be built from the config.
    """
    model = build_model(config, trust_remote_code=trust_remote_code, role=role)
    tree = module_tree(model)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    blocks = detect_blocks(tree)
    no_split = getattr(model, "_no_split_modules", None)
    names = tuple(sorted(no_split)) if no_split is not None else None
    detected = frozenset(name for block in blocks for name in block.class_names)
    heads = _first(text, "num_attention_heads", "n_head", "num_heads")
    kv_heads = _first(text, "num_key_value_heads", "num_kv_heads") or heads
    hidden = _first(text, "hidden_size", "n_embd", "d_model")
    experts, used = _first(text, *_EXPERT_COUNTS), _first(text, *_EXPERTS_USED)
    layers = _first(text, "num_hidden_layers", "n_layer", "num_layers")
    head_dim = _first(text, "head_dim") or (hidden // heads if heads else 0)
    return Architecture(
        model_type=config.model_type,
        class_name=type(model).__name__,
        parameters=tree.parameters,
        active_parameters=tree.parameters - _idle(tree, experts, used),
        tied_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=_first(text, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=_first(text, "vocab_size"),
        max_position_embeddings=_first(text, "max_position_embeddings", "n_positions", "max_seq_len"),
        dtype=dtype_name(getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)),
        no_split_modules=names,
        layer_classes=_layer_classes(tree, detected, frozenset(names or ())),
        modules=tree,
        largest_parameter=largest_parameter(model),
        saved_bytes_per_token=saved_bytes_per_token(text, trust_remote_code=trust_remote_code),
        num_experts=experts,
        num_experts_per_token=used,
        moe_intermediate_size=_first(text, "moe_intermediate_size"),
        has_vision=getattr(config, "vision_config", None) is not None,
        remote_code=has_code,
        kv_bytes_per_token=_kv_bytes(text, layers, kv_heads, head_dim),
    )


def build_model(config: Any, *, trust_remote_code: bool = False, role: str = "actor") -> Any:
    """Build on the meta device the class that verl 0.9.1 would.

    Source: `utils/model.py`, `get_hf_auto_model_class` and `load_valuehead_model`.

    Raises:
        ModelError: transformers has no such class for the config, or a package is missing.
    """
    import transformers

    # Absent before transformers 4.45, like the config's own way to its text part.
    with_images: Any = getattr(transformers, "AutoModelForImageTextToText", None)
    auto: Any = transformers.AutoModelForCausalLM
    if role == "critic":
        config.num_labels = 1
        auto = transformers.AutoModelForTokenClassification
    elif with_images is not None and type(config) in with_images._model_mapping:
        auto = with_images
    options = {"trust_remote_code": True} if trust_remote_code else {}
    try:
        with torch.device("meta"), _no_initialisation():
            return auto.from_config(config, **options)
    except ImportError as error:
        raise ModelError(f"{config.model_type}: its code needs a package that is not installed: {error}") from error
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        raise ModelError(f"{config.model_type}: transformers has no {_NEEDS[role]}") from error


@contextlib.contextmanager
def _no_initialisation() -> Iterator[None]:
    """Make torch's initialisers do nothing: on the meta device they only take time, half of a large build."""
    kept = {name: value for name, value in vars(init).items() if name.endswith("_") and callable(value)}
    for name in kept:
        setattr(init, name, lambda tensor, *_, **__: tensor)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(init, name, value)


def _first(config: Any, *names: str) -> int:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _kv_bytes(text: Any, layers: int, kv_heads: int, head_dim: int) -> int:
    latent = _first(text, "kv_lora_rank")
    # Multi-head latent attention caches one compressed vector and the rotary part for all heads.
    width = latent + _first(text, "qk_rope_head_dim") if latent else 2 * kv_heads * head_dim
    return layers * width * KV_DTYPE_BYTES


def _idle(tree: ModuleGroup, experts: int, used: int) -> int:
    """Elements of routed experts that one token does not pass through."""
    if not experts or not used:
        return 0
    held = sum(group.parameters * times for group, times in _with_counts(tree, 1) if group.name == "experts")
    return held * (experts - used) // experts


def _with_counts(group: ModuleGroup, times: int) -> Iterator[tuple[ModuleGroup, int]]:
    """Yield every group with the number of its instances in the model."""
    yield group, times * group.repeat
    for child in group.children:
        yield from _with_counts(child, times * group.repeat)


def _layer_classes(tree: ModuleGroup, detected: frozenset[str], named: frozenset[str]) -> tuple[LayerClass, ...]:
    found: dict[str, list[tuple[ModuleGroup, int]]] = {}
    for child in tree.children:
        for group, count in _with_counts(child, 1):
            if group.numel and not is_container(group):
                found.setdefault(group.class_name, []).append((group, count))
    classes = [
        LayerClass(
            name=name,
            count=sum(count for _, count in members),
            parameters=sum(group.parameters * count for group, count in members),
            largest_parameters=max(group.numel for group, _ in members),
            kind=_kind(name, members, name in detected, name in named),
            in_no_split_modules=name in named,
            detected=name in detected,
        )
        for name, members in found.items()
    ]
    classes.sort(key=lambda entry: (not entry.detected, not entry.in_no_split_modules, -entry.parameters))
    return tuple(classes)


def _kind(name: str, members: list[tuple[ModuleGroup, int]], detected: bool, named: bool) -> Any:
    if detected:
        return "block"
    if all(is_embedding(group) for group, _ in members):
        return "embedding"
    if all(group.name in _HEADS for group, _ in members):
        return "head"
    if any(group.name in ("experts", "expert") for group, _ in members) or "expert" in name.lower():
        return "expert"
    repeated = sum(count for _, count in members) >= 2
    return "block" if named and repeated and all(is_block_like(group) for group, _ in members) else "other"
