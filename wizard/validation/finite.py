"""Finds the first module whose result or gradient is NaN or infinite, or missing. Target interpreter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor


@dataclass
class _Passage:
    """One module's part in a backward: whether gradients came in, and went out, finite."""

    name: str
    module: nn.Module
    waits: bool = False
    """Whether its result takes part in the graph."""
    came: list[torch.Tensor] = field(default_factory=list)
    went: list[torch.Tensor] = field(default_factory=list)


class FirstNonFinite:
    """Watches every module's output during one forward, and the gradients on their way back through it.

    The modules' hooks are gone after the forward; those on its tensors go with the graph.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hooks: list[Any] = []
        self._flags: list[tuple[str, nn.Module, torch.Tensor]] = []
        self._passages: list[_Passage] = []

    def __enter__(self) -> FirstNonFinite:
        for name, module in self._model.named_modules():
            self._hooks.append(module.register_forward_hook(self._hook(name), with_kwargs=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, name: str) -> Any:
        def note(module: nn.Module, given: Any, named: dict[str, Any], output: Any) -> None:
            passage = _Passage(name, module)
            for tensor in _floating((output,)):
                # Kept on the device: reading each flag would wait for the GPU at every module.
                self._flags.append((name, module, torch.isfinite(tensor.detach()).all()))
                if tensor.requires_grad:
                    passage.waits = True
                    tensor.register_hook(_note(passage.came))
            for tensor in _floating((*given, *named.values())):
                if tensor.requires_grad:
                    tensor.register_hook(_note(passage.went))
            self._passages.append(passage)

        return note

    def sentence(self) -> str:
        """Return which module was first, and its weight that is to blame; empty when all were finite."""
        for name, module, finite in self._flags:
            if not bool(finite):
                weight = _non_finite_weight(module)
                blamed = f": parameter {name}.{weight} holds nan or inf" if weight else ""
                return f"first non-finite output in {_plain(name) or 'the model'}{_plain(blamed)}"
        return ""

    def gradient_sentence(self) -> str:
        """Return the innermost module that finite gradients came into and others left; empty when there is none."""
        found = [
            passage.name
            for passage in self._passages
            if passage.came and all(map(bool, passage.came)) and not all(map(bool, passage.went))
        ]
        inner = [name for name in found if not any(other != name and other.startswith(f"{name}.") for other in found)]
        # Later modules come first on the way back.
        first = next((name for name in reversed(inner) if name), None)
        return f"first non-finite gradient in {_plain(first)}" if first is not None else ""

    def cut_off(self) -> str:
        """Return the first module with trained weights whose result no gradient came back to; empty if there is none.

        Such weights do not learn, and FSDP hides it: it hands out zeros where a unit's parameter got no gradient.
        """
        reached = {passage.name for passage in self._passages if passage.came}
        for passage in self._passages:
            trained = any(parameter.requires_grad for parameter in passage.module.parameters(recurse=False))
            if trained and passage.waits and passage.name not in reached:
                return _plain(passage.name)
        return ""


def _note(flags: list[torch.Tensor]) -> Any:
    def hook(gradient: torch.Tensor) -> None:
        flags.append(torch.isfinite(gradient.detach()).all())

    return hook


def _floating(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                yield value
        elif isinstance(value, dict):
            yield from _floating(value.values())
        elif isinstance(value, (tuple, list)):
            yield from _floating(value)


def _plain(name: str) -> str:
    plain = name.replace("_fsdp_wrapped_module.", "").replace("_checkpoint_wrapped_module.", "")
    return plain.removeprefix("module.")


def _non_finite_weight(module: nn.Module) -> str:
    for name, parameter in module.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if not bool(torch.isfinite(local).all()):
            return name
    return ""
