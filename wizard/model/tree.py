"""A torch model as a tree of `ModuleGroup`s. Runs in the target interpreter: standard library and torch only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from wizard.facts import ModuleGroup

POLICY_BASES: tuple[type, ...] = (
    *(nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.Embedding),
    # torch's size policy keeps the former whole; FSDP1 with mixed precision wraps the latter each on its own.
    *(nn.MultiheadAttention, _BatchNorm),
)
_DIGITS = re.compile(r"\d+")


def module_tree(model: nn.Module) -> ModuleGroup:
    """Return the model's modules, identical numbered siblings told once. Costs no memory beyond the tree.

    A module registered under two names is told where `named_modules` meets it first.
    """
    return _TreeBuilder(model).build()


@dataclass
class _Subtree:
    group: ModuleGroup
    shared: dict[int, int] = field(default_factory=dict)
    """Elements by identity of the subtree's parameters that more than one module registers."""


class _TreeBuilder:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        classes: dict[type, None] = {}
        owners: Counter[int] = Counter()
        for module in model.modules():
            classes[type(module)] = None
            owners.update(id(parameter) for parameter in module._parameters.values() if parameter is not None)
        self.bases = {cls: _bases(cls, classes) for cls in classes}
        self.shared_ids = {identity for identity, count in owners.items() if count > 1}
        self.met: set[int] = set()
        self.visited: set[int] = {id(model)}

    def build(self) -> ModuleGroup:
        return self._visit("", self.model).group

    def _visit(self, name: str, module: nn.Module) -> _Subtree:
        own = 0
        unshared = 0
        shared: dict[int, int] = {}
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            elements = parameter.numel()
            identity = id(parameter)
            if identity not in self.shared_ids:
                unshared += elements
            else:
                shared[identity] = elements
                if identity in self.met:
                    continue
                self.met.add(identity)
            own += elements
        first_met = own
        children: list[_Subtree] = []
        for child_name, child in module.named_children():
            if id(child) in self.visited:
                continue
            self.visited.add(id(child))
            subtree = self._visit(child_name, child)
            children.append(subtree)
            first_met += subtree.group.parameters
            shared.update(subtree.shared)
            unshared += subtree.group.numel - sum(subtree.shared.values())
        numel = unshared + sum(shared.values())
        group = ModuleGroup(
            name=name,
            class_name=type(module).__name__,
            repeat=1,
            parameters=first_met,
            own_parameters=own,
            children=_collapse(child.group for child in children) if children else (),
            reused_parameters=numel - first_met,
            # The first test alone would do, were it not for properties; asking a module for what it lacks is slow.
            has_weight="weight" in module._parameters or hasattr(module, "weight"),
            bases=self.bases[type(module)],
        )
        return _Subtree(group, shared)


def _bases(cls: type, present: dict[type, None]) -> tuple[str, ...]:
    return tuple(base.__name__ for base in cls.__mro__[1:] if base in present or base in POLICY_BASES)


def _collapse(children: Iterator[ModuleGroup]) -> tuple[ModuleGroup, ...]:
    """Merge siblings that differ in nothing but the number in their name, in the order first met."""
    counts: Counter[ModuleGroup] = Counter()
    first: dict[ModuleGroup, str] = {}
    for child in children:
        pattern = _DIGITS.sub("#", child.name)
        key = child if pattern == child.name else replace(child, name=pattern)
        counts[key] += 1
        first.setdefault(key, child.name)
    return tuple(replace(key, name=first[key], repeat=count) for key, count in counts.items())


def largest_parameter(model: nn.Module) -> int:
    """Return the elements of the model's largest single parameter."""
    return max((parameter.numel() for parameter in model.parameters()), default=0)


def dtype_name(dtype: torch.dtype | str | None) -> str:
    """Return `bfloat16` for `torch.bfloat16`; empty for None."""
    return str(dtype or "").removeprefix("torch.")
