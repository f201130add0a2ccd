"""Sizes that the replay needs, in elements and bytes per token: what a model weighs and what a block keeps.

Byte counts follow transformers 5 (`models/qwen2/modeling_qwen2.py` and its copies) under bf16 autocast: a tensor
is counted when autograd keeps it, or while it is alive at a moment that can be the peak.
"""

from __future__ import annotations

from dataclasses import dataclass

FP32 = 4


@dataclass(frozen=True)
class Moment:
    """One moment of a block's backward that can be the peak, counted from the block's recomputed state."""

    label: str
    bytes_per_token: float
    constant_bytes: float = 0.0


@dataclass(frozen=True)
class Block:
    """One repeated block (decoder layer) and what it costs. Parameters are elements of one block."""

    parameters: int
    repeat: int
    saved_bytes_per_token: float
    """Kept for backward without checkpointing."""
    forward_bytes_per_token: float
    """Alive at once in a forward that keeps nothing, the block's input left out."""
    kept_forward_bytes_per_token: float
    """Alive on top of `saved_bytes_per_token` at the end of a forward that keeps everything."""
    backward: tuple[Moment, ...]
    trainable_parameters: int = -1
    """Elements that get gradients; -1 means all (LoRA trains only its adapters)."""
    largest_parameter: int = 0

    @property
    def trainable(self) -> int:
        """Elements of one block that get gradients."""
        return self.parameters if self.trainable_parameters < 0 else self.trainable_parameters


@dataclass(frozen=True)
class ModelShape:
    """A model as FSDP sees it. All sizes are elements; `tied` puts the embedding into the root unit."""

    hidden: int
    vocab: int
    head_dim: int
    tied: bool
    blocks: tuple[Block, ...]
    embedding_parameters: int
    head_parameters: int
    root_parameters: int
    """Elements of no other unit: the final norm, towers that the policy leaves out; without a tied embedding."""
    output_size: int = 0
    """Width of the head: the vocabulary, or 1 for a value model."""
    trainable_ends: bool = True
    """Whether embedding, head and root get gradients; LoRA freezes them."""

    @property
    def parameters(self) -> int:
        """All elements, tied ones once."""
        ends = self.embedding_parameters + self.head_parameters + self.root_parameters
        return ends + sum(block.parameters * block.repeat for block in self.blocks)

    @property
    def trainable(self) -> int:
        """Elements that get gradients and optimizer state."""
        ends = self.embedding_parameters + self.head_parameters + self.root_parameters
        return (ends if self.trainable_ends else 0) + sum(block.trainable * block.repeat for block in self.blocks)

    @property
    def largest_unit(self) -> int:
        """Elements of the largest block, embedding or head."""
        return max([self.embedding_parameters, self.head_parameters, *(block.parameters for block in self.blocks)])


def dense_block(
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    parameters: int,
    repeat: int,
    compute_bytes: int = 2,
    liger: bool = False,
) -> Block:
    """Return the cost of a Llama/Qwen2-like block: RMSNorm, GQA attention by a flash kernel, gated MLP.

    Kept: per norm an fp32 copy, the normalised tensor and its product with the weight; rotated q and k, v,
    the attention output and its log-sum-exp; gate, up, activation and product of the MLP.
    """
    w, h, f = compute_bytes, hidden, ffn
    q, kv = heads * head_dim, kv_heads * head_dim
    norm = (2 * w * h) if liger else (FP32 + 2 * w) * h
    attention = w * (2 * q + 2 * kv) + FP32 * heads
    mlp = (3 if liger else 4) * w * f
    saved = 2 * norm + attention + mlp
    mlp_weights = 3 * f * h
    return Block(
        parameters=parameters,
        repeat=repeat,
        saved_bytes_per_token=saved,
        forward_bytes_per_token=max(2 * w * h + 3 * w * f, w * h + 2 * FP32 * h, 2 * w * h + w * (4 * q + 2 * kv)),
        kept_forward_bytes_per_token=2 * w * h,
        backward=(
            Moment("MLP backward", saved + w * h + 2 * w * f, w * f * h),
            Moment(
                "attention backward",
                norm + attention + w * h + w * (4 * q + 2 * kv) + FP32 * q,
                w * (mlp_weights + h * q),
            ),
            Moment("norm backward", (6 * FP32 + w) * h, w * parameters),
        ),
        largest_parameter=f * h,
    )
