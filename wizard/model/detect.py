"""Find a model's repeated blocks by structure, for models whose `_no_split_modules` is missing, partial or wrong.

Works on the tree that the inspector read off the model, so it needs no torch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from wizard.facts import ModuleGroup

SMALLEST_SHARE = 0.02
"""A group of blocks below this share of the parameters outside embeddings and head is not worth a unit."""

_CONTAINERS = frozenset({"ModuleList", "Sequential", "ModuleDict"})
_NUMBERED = re.compile(r"\d")
_HEAD_NAMES = frozenset({"lm_head", "embed_out"})


@dataclass(frozen=True)
class BlockGroup:
    """Sibling blocks found under one parent."""

    path: str
    class_names: tuple[str, ...]
    count: int
    parameters: int
    """Elements in all the group's blocks together, those they share counted once."""


def is_container(group: ModuleGroup) -> bool:
    """Return whether the module only holds others: ModuleList, Sequential, ModuleDict or a subclass."""
    return not _CONTAINERS.isdisjoint((group.class_name, *group.bases))


def is_embedding(group: ModuleGroup) -> bool:
    """Return whether the module is a `torch.nn.Embedding`, which verl's fsdp2 wraps by type."""
    return "Embedding" in (group.class_name, *group.bases)


def is_block_like(group: ModuleGroup) -> bool:
    """Return whether the module could be a layer: no container, and at least two parts of it own parameters."""
    return not is_container(group) and sum(part.repeat for part in _parts(group)) >= 2


def detect_blocks(root: ModuleGroup) -> tuple[BlockGroup, ...]:
    """Return the outermost groups of repeated blocks that hold the model's parameters.

    A group is accepted when at least two siblings of one class (or any members of one container) are block-like
    and hold `SMALLEST_SHARE` of the parameters outside embeddings and head. A group whose blocks hold accepted
    groups of layers themselves, as two towers of one class do, gives way to those.
    """
    floor = SMALLEST_SHARE * max(1, root.parameters - _outside_layers(root))
    return tuple(_walk(root, "", floor))


def _outside_layers(group: ModuleGroup) -> int:
    if is_embedding(group) or group.name in _HEAD_NAMES:
        return group.parameters * group.repeat
    return group.repeat * sum(_outside_layers(child) for child in group.children)


def _walk(parent: ModuleGroup, path: str, floor: float) -> list[BlockGroup]:
    by_class: dict[str, list[ModuleGroup]] = defaultdict(list)
    for child in parent.children:
        by_class[child.class_name].append(child)
    in_container = is_container(parent)
    kinds = [
        name
        for name, members in by_class.items()
        if (in_container or _count(members) >= 2) and any(is_block_like(member) for member in members)
    ]
    blocks = [member for name in kinds for member in by_class[name]]
    accepted: list[BlockGroup] = []
    taken: list[ModuleGroup] = []
    size = sum(member.numel * member.repeat for member in blocks)
    if _count(blocks) >= 2 and size >= floor and not any(_holds_layers(block, floor) for block in blocks):
        held = sum(member.parameters * member.repeat for member in blocks)
        accepted.append(BlockGroup(path, tuple(sorted(kinds)), _count(blocks), held))
        taken = blocks
    for child in parent.children:
        if child not in taken:
            accepted += _walk(child, f"{path}.{child.name}" if path else child.name, floor / child.repeat)
    return accepted


def _count(groups: list[ModuleGroup]) -> int:
    return sum(group.repeat for group in groups)


def _holds_layers(block: ModuleGroup, floor: float) -> bool:
    """Return whether a block is a tower: somewhere in it, numbered siblings of one class are layers themselves.

    A mixture-of-experts layer also holds numbered blocks, but an expert's own children are leaves, while a
    layer's attention or mixer has parameterised children. A T5 block numbers its sub-layers, each of its own class.
    """
    by_class: dict[str, list[ModuleGroup]] = defaultdict(list)
    for child in block.children:
        if child.repeat >= 2 or _NUMBERED.search(child.name):
            by_class[child.class_name].append(child)
    for siblings in by_class.values():
        layers = [child for child in siblings if is_block_like(child) and any(map(_is_deep, _parts(child)))]
        if _count(layers) >= 2 and sum(layer.numel * layer.repeat for layer in layers) * block.repeat >= floor:
            return True
    return any(_holds_layers(child, floor) for child in block.children)


def _parts(group: ModuleGroup) -> list[ModuleGroup]:
    """Return the children that hold parameters, a lone container told by its members, as in a T5 block."""
    children = [child for child in group.children if child.numel]
    return _parts(children[0]) if len(children) == 1 and is_container(children[0]) else children


def _is_deep(group: ModuleGroup) -> bool:
    return any(child.numel for child in group.children)
