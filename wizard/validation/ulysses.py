"""Ulysses sequence parallelism for any model, through transformers' attention registry. Target interpreter.

Each rank holds a slice of the sequence. Around attention, an all-to-all trades sequence for heads, so that every
rank sees the whole sequence for its share of the heads. verl 0.9.1 does the same inside flash attention only
(`models/transformers/monkey_patch.py`, `utils/ulysses.py`); with sdpa its ranks attend to their slice alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

ATTENTION_NAME = "verl_wizard_ulysses"


class _AllToAll(torch.autograd.Function):
    """Trade dimension `scatter` for dimension `gather` among the group's ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any, scatter: int, gather: int) -> torch.Tensor:
        ctx.group, ctx.scatter, ctx.gather = group, scatter, gather
        size = dist.get_world_size(group)
        parts = torch.stack([part.contiguous() for part in tensor.chunk(size, dim=scatter)])
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=group)
        return torch.cat(list(received.unbind(0)), dim=gather)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _AllToAll.apply(gradients[0], ctx.group, ctx.gather, ctx.scatter), None, None, None


class SegmentMask:
    """Which tokens of a packed sequence see each other; set before a forward, read by the attention function."""

    lengths: tuple[int, ...] = ()
    """Lengths of the packed sequences, whole, in order."""


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Causal attention within each packed sequence. Shapes: (batch, heads, tokens, head_dim)."""
    grouped = query.shape[1] != key.shape[1]
    if grouped:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
    lengths = list(SegmentMask.lengths or (query.shape[2],))
    parts = zip(query.split(lengths, dim=2), key.split(lengths, dim=2), value.split(lengths, dim=2), strict=True)
    outputs = [
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale) for q, k, v in parts
    ]
    return torch.cat(outputs, dim=2)


def register_attention(group: Any) -> None:
    """Register the attention under `ATTENTION_NAME`, for a model whose heads and tokens divide over `group`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    size = dist.get_world_size(group)

    def attention(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any = None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        if key.shape[1] < size:
            # Fewer key-value heads than ranks: each is sent to several (verl repeats them too).
            times = size // key.shape[1]
            key, value = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
        query, key, value = (_AllToAll.apply(tensor, group, 1, 2) for tensor in (query, key, value))
        output = _AllToAll.apply(_attend(query, key, value, scaling), group, 2, 1)
        return output.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, attention)
    # The mask is made here from the packing: the model only knows its slice of the sequence.
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, lambda *_, **__: None)
