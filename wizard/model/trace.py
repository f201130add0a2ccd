"""Bytes a decoder layer keeps for backward, counted on fake tensors. Runs in the target interpreter.

Nothing is computed or allocated: a backbone of one period of layers runs forward on fake bf16 tensors with gradients
on, and every storage that autograd packs inside a layer is counted once. Weights are left out, and so is what all
layers share (rotary tables, position ids).
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

TOKENS = 1024
"""Length of the traced sequence. What layers keep grows linearly with it, as flash attention keeps no scores."""

_ATTENTION = "wizard_causal"
_ROUTED_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def saved_bytes_per_token(config: Any, *, trust_remote_code: bool = False) -> int:
    """Return the bytes per token that one layer keeps, the mean over a period of unlike layers; 0 when untraceable.

    The dense layers in front of a mixture of experts are left out of the mean. Attention is a flash kernel's.

    Args:
        config: the text part's transformers config.
    """
    try:
        return _trace(config, {"trust_remote_code": True} if trust_remote_code else {})
    except Exception as error:
        # A model whose code cannot run on fake tensors (or this torch's fakes) is a model without this figure.
        print(f"activation trace: {type(error).__name__}: {error}", file=sys.stderr)
        return 0


def _trace(config: Any, access: dict[str, Any]) -> int:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoModel

    if type(config) not in AutoModel._model_mapping and "AutoModel" not in (getattr(config, "auto_map", None) or {}):
        # Said here at once: transformers would import every model to list what it knows.
        raise _Untraceable(f"{type(config).__name__} has no backbone class")
    _register_attention()
    dense, period = _dense_layers(config), _period(config)
    short = _shortened(config, dense + period)
    short._attn_implementation = _ATTENTION
    short.use_cache = False
    if any(getattr(short, name, 0) for name in _ROUTED_EXPERTS):
        short._experts_implementation = "grouped_mm"
    with FakeTensorMode():
        model = AutoModel.from_config(short, dtype=torch.bfloat16, **access).train()
        layers = _layers(model, dense + period)
        counters = [_KeptBytes(layer) for layer in layers[dense:]]
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(input_ids=ids, position_ids=torch.arange(TOKENS)[None], use_cache=False)
    return round(sum(counter.total for counter in counters) / len(counters) / TOKENS)


class _Untraceable(Exception):
    """The layer's forward here is not the one a GPU runs."""


class _KeptBytes:
    """Counts what autograd packs while one layer runs."""

    def __init__(self, layer: nn.Module) -> None:
        self.total = 0
        self._pieces = 0
        self._met: set[int] = {tensor.untyped_storage()._cdata for tensor in (*layer.parameters(), *layer.buffers())}
        self._alive: list[torch.Tensor] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        layer.register_forward_pre_hook(self._enter, with_kwargs=True)
        # A failing forward would leave its hooks to all that this process runs later.
        layer.register_forward_hook(self._leave, always_call=True)

    def _enter(self, layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        hidden = arguments[0] if arguments else keywords.get("hidden_states")
        for value in tree_leaves((arguments, keywords)):
            if isinstance(value, torch.Tensor) and value is not hidden:
                self._met.add(value.untyped_storage()._cdata)
                self._alive.append(value)
        self._hooks.__enter__()

    def _leave(self, layer: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        self._hooks.__exit__(None, None, None)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and storage._cdata not in self._met:
            self._met.add(storage._cdata)
            # A dead storage's address would be used again.
            self._alive.append(tensor)
            self.total += storage.nbytes()
            self._pieces += 1
            if self._pieces > TOKENS:
                raise _Untraceable("the layer loops over tokens in Python, which is not what a GPU runs")
        return tensor


def _register_attention() -> None:
    from torch.nn import functional
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attention(
        module: nn.Module, query: Any, key: Any, value: Any, mask: Any, scaling: float | None = None, **_: Any
    ) -> tuple[Any, None]:
        width = value.shape[-1]
        if width != query.shape[-1]:
            # Latent attention: flash kernels want one head size, so transformers pads the values.
            value = functional.pad(value, (0, query.shape[-1] - width))
        grouped = query.shape[1] != key.shape[1]
        output = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped
        )
        return output[..., :width].transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, lambda *_, **__: None)


def _dense_layers(config: Any) -> int:
    dense = getattr(config, "first_k_dense_replace", 0)
    return dense if isinstance(dense, int) and dense < config.num_hidden_layers else 0


def _period(config: Any) -> int:
    """Length of the shortest repeating pattern of unlike layers; attention windows change nothing that is kept."""
    types = [
        "attention" if str(kind).endswith("attention") and "linear" not in str(kind) else kind
        for kind in getattr(config, "layer_types", None) or ["attention"]
    ]
    return next(
        length
        for length in range(1, len(types) + 1)
        if all(kind == types[index % length] for index, kind in enumerate(types))
    )


def _shortened(config: Any, layers: int) -> Any:
    """Return the config with its first `layers` layers, lists that hold one entry a layer cut alike."""
    settings = config.to_dict()
    name_of_count = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    total = settings[name_of_count]
    cut = {
        name: value[:layers] if isinstance(value, list) and len(value) == total else value
        for name, value in settings.items()
    }
    return type(config)(**{**cut, name_of_count: layers})


def _layers(model: nn.Module, count: int) -> list[nn.Module]:
    found: list[nn.ModuleList] = [
        module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    heaviest = max(found, key=lambda layers: sum(parameter.numel() for parameter in layers.parameters()))
    return list(heaviest)
