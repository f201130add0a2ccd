"""From an inspected model and its FSDP settings to the shape that the replay walks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from wizard.facts import Architecture, ModuleGroup
from wizard.memory.shapes import Block, BlockDims, ModelShape, decoder_block, norm_inner_bytes
from wizard.model.detect import is_container, is_embedding
from wizard.model.units import Unit, fsdp_units
from wizard.plan import Fsdp


@dataclass(frozen=True)
class Options:
    """How the model's layers run, as far as it changes what they keep."""

    compute_bytes: int = 2
    liger: bool = False
    lora_rank: int = 0
    ulysses: int = 1
    value_head: bool = False
    """The model is a critic: one output a token instead of the vocabulary."""
    mask_width: int = 0
    """Keys a query's row of an explicit attention mask has; 0 with flash attention."""
    keeps_scores: bool = False
    """Eager attention: the scores of all heads are kept."""


@lru_cache(maxsize=128)
def shape_of(architecture: Architecture, fsdp: Fsdp, options: Options) -> ModelShape:
    """Return the model's shape under `fsdp`.

    Layers of other towers (vision, audio) weigh what they weigh and keep nothing: how many of their tokens a batch
    holds is not known from the Plan.

    Raises:
        NoUnits: verl would stop while it builds the wrap policy.
    """
    units = fsdp_units(architecture, fsdp)
    layers = decoder_layers(architecture)
    dims = [dims_of(architecture, group, options) for _, group in layers]
    blocks = [
        _decoder(architecture, path, group, units, options, each)
        for (path, group), each in zip(layers, dims, strict=True)
    ]
    paths = tuple(path for path, _ in layers)
    embedding, head = _embedding(architecture.modules), _head(architecture.modules)
    for unit in units:
        if unit.kind == "block" and not unit.nested and not unit.name.startswith(paths):
            blocks.insert(0, _silent(unit, trainable=not options.lora_rank))
    root = architecture.parameters - embedding - head
    head_width = 0
    if options.value_head:
        # A causal model's head gives way to one output; an inspected critic has it in place already.
        root += architecture.hidden_size + 1 if head or architecture.tied_embeddings else 0
        head, head_width = 0, 1
    root -= sum(group.parameters * group.repeat for _, group in layers)
    root -= sum(block.weights * block.repeat for block in blocks if not block.backward)
    tied = architecture.tied_embeddings and not options.value_head
    wrapped_ends = fsdp.strategy == "fsdp2" and any(unit.kind == "embedding" for unit in units)
    return ModelShape(
        hidden=architecture.hidden_size,
        vocab=architecture.vocab_size,
        blocks=tuple(blocks),
        embedding_parameters=embedding,
        head_parameters=head,
        root_parameters=max(0, root),
        tied=tied,
        ends_in_root=not wrapped_ends,
        output_size=head_width,
        trainable_ends=not options.lora_rank,
        norm_bytes=float(norm_inner_bytes(dims[-1]) + options.compute_bytes) if dims else 0.0,
        output_dropout=options.value_head,
        largest_parameter=architecture.largest_parameter,
    )


def decoder_layers(architecture: Architecture) -> tuple[tuple[str, ModuleGroup], ...]:
    """Return the text decoder's layers with their paths: the container of `num_layers` blocks that weighs most."""
    found = [
        (name, children)
        for name, children in _containers(architecture.modules, "")
        if sum(child.repeat for child in children) == architecture.num_layers
    ]
    if not found:
        return ()
    name, children = max(found, key=lambda entry: sum(child.parameters * child.repeat for child in entry[1]))
    return tuple((f"{name}.{child.name}" if name else child.name, child) for child in children)


def _containers(group: ModuleGroup, name: str) -> list[tuple[str, tuple[ModuleGroup, ...]]]:
    found = [(name, group.children)] if group.children and is_container(group) else []
    for child in group.children:
        found += _containers(child, f"{name}.{child.name}" if name else child.name)
    return found


def dims_of(architecture: Architecture, group: ModuleGroup, options: Options) -> BlockDims:
    """Return the dimensions of one decoder layer."""
    routed = _routed(architecture, group)
    shared = _named(group, ("shared_expert", "shared_experts"))
    hidden = architecture.hidden_size
    ffn = (shared.parameters // (3 * hidden) if shared else 0) if routed else architecture.intermediate_size
    return BlockDims(
        hidden=hidden,
        heads=architecture.num_attention_heads,
        kv_heads=architecture.num_key_value_heads,
        head_dim=architecture.head_dim,
        ffn=ffn,
        norms=max(2, sum(child.repeat for child in group.children if "norm" in child.class_name.lower())),
        qk_norm=_named(group, ("q_norm", "q_layernorm", "query_layernorm")) is not None,
        fp32_norm=architecture.model_type.startswith("gemma"),
        experts=architecture.num_experts if routed else 0,
        experts_per_token=architecture.num_experts_per_token,
        expert_ffn=architecture.moe_intermediate_size or architecture.intermediate_size,
        compute_bytes=options.compute_bytes,
        liger=options.liger,
        lora_rank=options.lora_rank,
        ulysses=options.ulysses,
        mask_width=options.mask_width,
        keeps_scores=options.keeps_scores,
    )


def _decoder(
    architecture: Architecture,
    path: str,
    group: ModuleGroup,
    units: tuple[Unit, ...],
    options: Options,
    dims: BlockDims,
) -> Block:
    # What the trace found beyond the closed form (latent attention, gated experts) stays whatever the options are.
    plain = decoder_block(dims_of(architecture, group, Options()), weights=group.parameters, repeat=1)
    dense_beside_experts = architecture.num_experts and not dims.experts
    traced = 0 if dense_beside_experts else architecture.saved_bytes_per_token
    beyond = max(0.0, traced - plain.saved_bytes_per_token) if traced else 0.0
    wrapped = any(unit.kind == "block" and unit.name == path for unit in units)
    return decoder_block(dims, weights=group.parameters, repeat=group.repeat, wrapped=wrapped, beyond=beyond)


def _silent(unit: Unit, *, trainable: bool) -> Block:
    return Block(
        weights=unit.parameters,
        trainable=unit.parameters if trainable else 0,
        repeat=unit.count,
        wrapped=True,
        saved_bytes_per_token=0,
        forward_bytes_per_token=0,
        kept_forward_bytes_per_token=0,
        backward=(),
    )


def _routed(architecture: Architecture, group: ModuleGroup) -> bool:
    return architecture.num_experts > 0 and _named(group, ("experts", "expert")) is not None


def _named(group: ModuleGroup, names: tuple[str, ...]) -> ModuleGroup | None:
    if group.name in names:
        return group
    return next((found for child in group.children if (found := _named(child, names))), None)


def _embedding(root: ModuleGroup) -> int:
    """Elements of the largest embedding: the token embedding."""
    if is_embedding(root):
        return root.parameters
    return max((_embedding(child) for child in root.children), default=0)


def _head(root: ModuleGroup) -> int:
    found = _named(root, ("lm_head", "embed_out", "output"))
    return found.parameters if found else 0
