"""Sizes that the replay needs, in elements and bytes per token: what a model weighs and what a block keeps.

Byte counts follow transformers 5 (`models/qwen2/modeling_qwen2.py` and its copies, `integrations/moe.py`) under bf16
autocast: a tensor is counted when autograd keeps it, or while it is alive at a moment that can be the peak.
"""

from __future__ import annotations

from dataclasses import dataclass

FP32 = 4


@dataclass(frozen=True)
class Moment:
    """One moment of a block's backward that can be the peak, counted from the state before its recomputation."""

    label: str
    bytes_per_token: float
    gradient_parameters: float = 0.0
    """Elements of the block whose gradients exist at that moment."""
    constant_bytes: float = 0.0
    """Bytes alive at that moment whatever the tokens."""


@dataclass(frozen=True)
class Block:
    """One repeated block (decoder layer) and what it costs. Parameters are elements of one block."""

    weights: int
    """Elements it holds."""
    trainable: int
    """Those that get gradients."""
    repeat: int
    wrapped: bool
    """Whether it is an FSDP unit; otherwise it is part of the root unit."""
    saved_bytes_per_token: float
    """Kept for backward without checkpointing."""
    forward_bytes_per_token: float
    """Alive at once in a forward that keeps nothing, the block's input left out."""
    kept_forward_bytes_per_token: float
    """Alive on top of `saved_bytes_per_token` at the end of a forward that keeps everything."""
    backward: tuple[Moment, ...]
    weight_copies_bytes: float = 0.0
    """Kept for backward whatever the tokens: expert weights with LoRA's product added, which peft makes anew."""

    @property
    def parameters(self) -> int:
        """Elements its unit gathers."""
        return self.weights if self.wrapped else 0


@dataclass(frozen=True)
class BlockDims:
    """What decides the tensors of a decoder layer. Sizes are elements."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    """Intermediate size of the dense MLP, or of the shared expert; 0 when there is none."""
    norms: int = 2
    """RMSNorms over the hidden size: 2, or 4 as in Gemma."""
    qk_norm: bool = False
    fp32_norm: bool = False
    """The norm's product with the weight stays fp32, as in Gemma."""
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    compute_bytes: int = 2
    liger: bool = False
    lora_rank: int = 0
    ulysses: int = 1
    mask_width: int = 0
    """Keys a query's row of an explicit attention mask has; 0 for flash attention."""
    keeps_scores: bool = False
    """Eager attention: the scores of all heads are kept."""

    @property
    def query(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Width of all key heads, repeated as verl's Ulysses patch does when fewer heads than ranks exist."""
        return self.kv_heads * self.head_dim * max(1, self.ulysses // max(1, self.kv_heads))

    @property
    def lora_parameters(self) -> int:
        """Elements LoRA adds to one block (`target_modules: all-linear`; peft 0.21).

        Every linear layer gets rank × (in + out); so do the router and each expert's two fused matrices, gate and up
        at twice the rank.
        """
        hidden, plain_kv, ffn = self.hidden, self.kv_heads * self.head_dim, self.expert_ffn
        attention = 2 * (hidden + self.query) + 2 * (hidden + plain_kv)
        dense = 3 * (hidden + self.ffn) if self.ffn else 0
        expert = 2 * (hidden + 2 * ffn) + (hidden + ffn)
        routed = self.experts * expert + hidden + self.experts if self.experts else 0
        return self.lora_rank * (attention + dense + routed)


def decoder_block(dims: BlockDims, *, weights: int, repeat: int, wrapped: bool = True, beyond: float = 0.0) -> Block:
    """Return the cost of a decoder layer: RMSNorm, GQA attention by a flash kernel, gated MLP or routed experts.

    Kept: per norm an fp32 copy, the normalised tensor and its product with the weight; rotated q and k, v, the
    attention output and its log-sum-exp; gate, up, activation and product of the MLP.

    Args:
        weights: elements of the layer, LoRA's left out.
        wrapped: whether the layer is an FSDP unit.
        beyond: bytes per token that the layer keeps besides, as traced on the model.
    """
    w, h, f, lora = dims.compute_bytes, dims.hidden, dims.ffn, dims.lora_rank
    q, kv = dims.query, dims.key_value
    inner = norm_inner_bytes(dims)
    norm, post_norm = (inner + w) * h + FP32, inner * h + FP32
    # sdpa with a mask repeats keys and values to all heads and keeps the mask in compute dtype.
    attention = w * (2 * q + 2 * (q if dims.mask_width else kv)) + FP32 * dims.heads + w * dims.mask_width
    if dims.keeps_scores:
        # transformers' eager_attention_forward: fp32 softmax, its cast, dropout's mask and output.
        attention += dims.heads * dims.mask_width * (FP32 + 2 * w + 1)
    if dims.qk_norm:
        attention += inner * (q + kv) + FP32 * (dims.heads + dims.kv_heads)
    if dims.ulysses > 1:
        attention += w * q
    mlp = (3 if dims.liger else 4) * w * f
    adapters = w * lora * 7 if lora else 0
    routed = _routed_bytes(dims)
    norms = 2 * norm + (dims.norms - 2) * post_norm
    kept = norms + attention + mlp + adapters + routed + beyond
    total = weights + dims.lora_parameters
    mlp_weights = 3 * f * h + 3 * dims.experts * dims.expert_ffn * h
    # Liger writes the gradients of gate and up over their values.
    moments = [
        Moment("MLP backward", kept + (1 if dims.liger else 2) * w * f, f * h),
        Moment(
            "attention backward",
            kept - mlp - routed - norm + w * h + w * (4 * q + 2 * kv) + FP32 * q,
            mlp_weights + h * q,
        ),
        Moment("norm backward", (4 * w if dims.liger else 6 * FP32 + w) * h, weights),
    ]
    forward = [2 * w * h + 3 * w * f, w * h + 2 * FP32 * h, 2 * w * h + w * (4 * q + 2 * kv)]
    copies = 0.0
    if dims.experts:
        k, e = dims.experts_per_token, dims.expert_ffn
        # Weighted outputs are combined by a product whose two gradients stand beside the output's own.
        moments.append(Moment("experts output backward", kept + 3 * k * w * h))
        # Down's backward: the gradients of its output, input and merged weight beside all merged weights.
        if lora:
            copies = float(w * 3 * dims.experts * e * h)
            moments.append(Moment("experts backward", kept + k * w * e, constant_bytes=copies * 4 / 3))
        # Input and its gradient, the gradient of gate and up, and all experts' weight gradients.
        pairs = k * w * (2 * h + 2 * e)
        moments.append(Moment("experts backward", kept - routed + pairs, 3 * dims.experts * e * h))
        forward.append(2 * w * h + k * w * max(h + 5 * e, 4 * h))
    return Block(
        weights=total,
        trainable=dims.lora_parameters if lora else total,
        repeat=repeat,
        wrapped=wrapped,
        saved_bytes_per_token=kept,
        forward_bytes_per_token=max(forward),
        kept_forward_bytes_per_token=2 * w * h,
        backward=tuple(moments),
        weight_copies_bytes=copies,
    )


def norm_inner_bytes(dims: BlockDims) -> int:
    """Bytes per element that an RMSNorm keeps beside its output: the fp32 copy and the normalised tensor; a frozen
    weight spares the latter, Liger keeps its input alone."""
    if dims.liger:
        return dims.compute_bytes
    normalised = FP32 if dims.fp32_norm else dims.compute_bytes
    return FP32 + (0 if dims.lora_rank else normalised)


def _routed_bytes(dims: BlockDims) -> float:
    """Bytes per token that routed experts keep with transformers' `grouped_mm`: every pair of token and expert has
    its input, gate and up, their activation and product, and its output; the router keeps its softmax."""
    if not dims.experts:
        return 0.0
    k, w = dims.experts_per_token, dims.compute_bytes
    pair = w * (2 * dims.hidden + 4 * dims.expert_ffn) + 8 + 8 + 1 + 2 * w
    return FP32 * dims.experts + k * pair


@dataclass(frozen=True)
class ModelShape:
    """A model as FSDP sees it. All sizes are elements."""

    hidden: int
    vocab: int
    blocks: tuple[Block, ...]
    embedding_parameters: int
    head_parameters: int
    """Elements of the output head; 0 when it is tied to the embedding."""
    root_parameters: int
    """Elements of no unit of their own, embedding and head left out: the final norm, towers the policy leaves out."""
    tied: bool
    """Whether the head uses the embedding's weight."""
    ends_in_root: bool = False
    """Whether embedding and head belong to the root unit: always under fsdp, under fsdp2 when tied."""
    output_size: int = 0
    """Width of the head: the vocabulary, or 1 for a value model; 0 means the vocabulary."""
    trainable_ends: bool = True
    """Whether embedding, head and root get gradients; LoRA freezes them."""
    norm_bytes: float = 8.0
    """Bytes per element that the final norm keeps, its output among them."""
    output_dropout: bool = False
    """Whether a dropout stands before the head, as in transformers' token classification models."""
    largest_parameter: int = 0
    """Elements of the largest single tensor."""

    @property
    def ends(self) -> int:
        """Elements outside the blocks."""
        return self.embedding_parameters + self.head_parameters + self.root_parameters

    @property
    def parameters(self) -> int:
        """All elements, tied ones once."""
        return self.ends + sum(block.weights * block.repeat for block in self.blocks)

    @property
    def trainable(self) -> int:
        """Elements that get gradients and optimizer state."""
        return (self.ends if self.trainable_ends else 0) + sum(block.trainable * block.repeat for block in self.blocks)

    @property
    def head_width(self) -> int:
        """Outputs a token has."""
        return self.output_size or self.vocab
