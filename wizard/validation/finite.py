"""Finds the first module whose result is NaN or infinite. Target interpreter."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor


class FirstNonFinite:
    """Watches every module's output during one forward; hooks are gone afterwards."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hooks: list[Any] = []
        self._flags: list[tuple[str, nn.Module, torch.Tensor]] = []

    def __enter__(self) -> FirstNonFinite:
        for name, module in self._model.named_modules():
            self._hooks.append(module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, name: str) -> Any:
        def note(module: nn.Module, _: Any, output: Any) -> None:
            tensors = output if isinstance(output, (tuple, list)) else (output,)
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    # Kept on the device: reading each flag would wait for the GPU at every module.
                    self._flags.append((name, module, torch.isfinite(tensor.detach()).all()))

        return note

    def sentence(self) -> str:
        """Return which module was first, and its weight that is to blame; empty when all were finite."""
        for name, module, finite in self._flags:
            if not bool(finite):
                weight = _non_finite_weight(module)
                blamed = f": parameter {name}.{weight} holds nan or inf" if weight else ""
                return f"first non-finite output in {_plain(name) or 'the model'}{_plain(blamed)}"
        return ""


def _plain(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", "")


def _non_finite_weight(module: nn.Module) -> str:
    for name, parameter in module.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if not bool(torch.isfinite(local).all()):
            return name
    return ""
