"""Which FSDP units a model becomes: what verl 0.9.1 and torch would wrap, replayed on the module tree.

Sources: verl 0.9.1 `utils/fsdp_utils.py` `get_fsdp_wrap_policy` and `_select_fsdp2_wrap_targets`; torch 2.13
`distributed/fsdp/wrap.py` `_recursive_wrap`, `size_based_auto_wrap_policy`, `transformer_auto_wrap_policy`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wizard.facts import Architecture, ModuleGroup
from wizard.plan import Fsdp

ROOT = "root"


@dataclass(frozen=True)
class Unit:
    """`count` equal FSDP units: modules whose parameters are gathered together."""

    name: str
    """Path of the first of them, such as `model.layers.0`; `root` for what no other unit holds."""
    class_name: str
    count: int
    parameters: int
    """Elements one of them gathers: those of its subtree that no unit inside it holds."""
    kind: str = ""
    """`root`, `embedding`, `head` or `block`."""
    nested: bool = False
    """Inside another unit. FSDP1 allows it, and gathers it within the outer unit's forward; FSDP2 does not."""


class NoUnits(ValueError):
    """verl stops while it wraps the model; the message is for the person."""


class NestedUnits(NoUnits):
    """A unit inside a unit, which torch's `fully_shard` refuses."""


def given_classes(architecture: Architecture, fsdp: Fsdp) -> tuple[str, ...] | None:
    """Return the names verl reads: the chosen ones, else `_no_split_modules` (None when the model has none)."""
    return fsdp.wrap_classes or architecture.no_split_modules


def resolved_classes(architecture: Architecture, fsdp: Fsdp) -> tuple[str, ...]:
    """Return those of the given names that are classes of the model, sorted."""
    present = class_names(architecture)
    return tuple(sorted(name for name in set(given_classes(architecture, fsdp) or ()) if name in present))


def class_names(architecture: Architecture) -> frozenset[str]:
    """Return the names of all module classes in the model."""
    return frozenset(group.class_name for _, group, _ in _walk(architecture.modules))


def fsdp_units(architecture: Architecture, fsdp: Fsdp) -> tuple[Unit, ...]:
    """Return the units in the order of `named_modules`, equal ones told once, the root unit last.

    Raises:
        NoUnits: verl would stop, as it does when none of the names is a class of the model, and as torch's
            `fully_shard` does when a unit lies inside another.
    """
    given = given_classes(architecture, fsdp)
    by_size = fsdp.min_num_params > 0
    # verl calls get_fsdp_wrap_policy for both strategies, so its refusal of unknown names holds for fsdp2 too.
    if not by_size and given is not None and not resolved_classes(architecture, fsdp):
        raise NoUnits(_unresolved(architecture, given))
    if fsdp.strategy == "fsdp2":
        if not given:
            raise NoUnits(
                f"{architecture.class_name} has no `_no_split_modules` and wrap_classes is empty: verl's fsdp2 stops "
                "with an error. Choose the layer classes."
            )
        picked = _fsdp2_targets(architecture, frozenset(given))
    elif by_size:
        picked = _size_targets(architecture.modules, fsdp.min_num_params)
    else:
        picked = _class_targets(architecture, fsdp)
    units = _units(architecture.modules, picked)
    if fsdp.strategy == "fsdp2":
        _refuse_nested(units)
    return units


def _refuse_nested(units: tuple[Unit, ...]) -> None:
    """verl wraps in the order of `named_modules`, outer first, and torch cannot shard a sharded parameter again."""
    for inner in units:
        if inner.nested and inner.parameters:
            outer = next(unit for unit in units if inner.name.startswith(f"{unit.name}."))
            by_itself = " (verl wraps embeddings by itself when they are not tied)" if inner.kind == "embedding" else ""
            raise NestedUnits(
                f"{inner.class_name} ({inner.name}) lies inside {outer.class_name}, and both would be units"
                f"{by_itself}: torch's fully_shard stops with 'Cannot concatenate overlapping meshes'. "
                f"Leave out {outer.class_name if inner.kind == 'embedding' else inner.class_name}."
            )


def _unresolved(architecture: Architecture, given: tuple[str, ...]) -> str:
    names = ", ".join(given) or "none"
    blocks = ", ".join(entry.name for entry in architecture.layer_classes if entry.kind == "block")
    return (
        f"none of the wrap classes ({names}) is a class of {architecture.class_name}: verl stops with "
        f"'Could not find any of the transformer layer classes to wrap'. Its repeated blocks: {blocks or 'none found'}."
    )


Path = tuple[int, ...]
"""Position in the tree: the index of the child taken at each level."""


def _walk(group: ModuleGroup, path: Path = (), name: str = "") -> Iterator[tuple[Path, ModuleGroup, str]]:
    yield path, group, name
    for index, child in enumerate(group.children):
        yield from _walk(child, (*path, index), f"{name}.{child.name}" if name else child.name)


def _fsdp2_targets(architecture: Architecture, names: frozenset[str]) -> frozenset[Path]:
    """verl 0.9.1 `_select_fsdp2_wrap_targets`: by class name, and embeddings and head unless tied."""
    tied = architecture.tied_embeddings
    return frozenset(
        path
        for path, group, _ in _walk(architecture.modules)
        if path
        and (
            group.class_name in names
            or (not tied and _is(group, "Embedding"))
            or (not tied and group.name in ("embed_tokens", "lm_head") and group.has_weight)
        )
    )


def _class_targets(architecture: Architecture, fsdp: Fsdp) -> frozenset[Path]:
    """torch's `transformer_auto_wrap_policy`: instances of the classes, subclasses too. No names: nothing."""
    names = resolved_classes(architecture, fsdp)
    return frozenset(
        path
        for path, group, _ in _walk(architecture.modules)
        if path and any(_is(group, name) for name in (*names, "_BatchNorm"))
    )


def _size_targets(root: ModuleGroup, smallest: int) -> frozenset[Path]:
    """torch's `size_based_auto_wrap_policy` under `_recursive_wrap(only_wrap_children=True)`."""
    picked: set[Path] = set()

    def wrap(group: ModuleGroup, path: Path) -> int:
        """Return the elements that end up in units inside or at one of the siblings."""
        batch_norm = _is(group, "_BatchNorm")
        if not batch_norm and (group.numel < smallest or _is(group, "MultiheadAttention")):
            return 0
        wrapped = sum(child.repeat * wrap(child, (*path, index)) for index, child in enumerate(group.children))
        large = group.numel - wrapped >= smallest
        if path and (batch_norm or (large and not _is(group, "ModuleList") and not _is(group, "ModuleDict"))):
            picked.add(path)
            return group.numel
        return wrapped

    wrap(root, ())
    return frozenset(picked)


def _is(group: ModuleGroup, class_name: str) -> bool:
    return class_name == group.class_name or class_name in group.bases


def _units(root: ModuleGroup, picked: frozenset[Path]) -> tuple[Unit, ...]:
    units: list[Unit] = []

    def collect(group: ModuleGroup, path: Path, name: str, siblings: int, inside: bool) -> int:
        """Append the units of a subtree; return the elements of one sibling that no unit holds."""
        count = siblings * group.repeat
        is_unit = path in picked
        slot = len(units)
        left = group.own_parameters
        for index, child in enumerate(group.children):
            child_name = f"{name}.{child.name}" if name else child.name
            left += child.repeat * collect(child, (*path, index), child_name, count, inside or is_unit)
        if not is_unit:
            return left
        units.insert(slot, Unit(name, group.class_name, count, left, _kind(group), inside))
        return 0

    left = collect(root, (), "", 1, False)
    return (*units, Unit(ROOT, root.class_name, 1, left, "root"))


def _kind(group: ModuleGroup) -> str:
    if _is(group, "Embedding"):
        return "embedding"
    return "head" if group.name == "lm_head" else "block"
