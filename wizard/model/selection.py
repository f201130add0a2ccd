"""Choosing layer classes: what verl would take by itself, what to take, and what follows from a choice. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from wizard.facts import Architecture, LayerClass, ModuleGroup
from wizard.model.units import NoUnits, Unit, class_names, fsdp_units, resolved_classes
from wizard.plan import Fsdp
from wizard.text import count

BF16_BYTES = 2
MIB, GIB = 1 << 20, 1 << 30


def candidates(architecture: Architecture) -> tuple[LayerClass, ...]:
    """Return the classes worth offering: blocks first, then what the model names, embeddings, heads and the rest."""
    order = {"block": 0, "expert": 2, "embedding": 3, "head": 4, "other": 5}

    def place(entry: LayerClass) -> tuple[bool, int, int]:
        return not entry.detected, 1 if entry.in_no_split_modules else order[entry.kind], -entry.parameters

    return tuple(sorted(architecture.layer_classes, key=place))


def recommended(architecture: Architecture) -> tuple[str, ...]:
    """Return the repeated blocks the detector found, and those the model names: none inside another, and none of the
    named ones with an embedding inside, which verl's fsdp2 would wrap as well."""
    embeddings = [entry.name for entry in architecture.layer_classes if entry.kind == "embedding"]
    chosen = [
        entry.name
        for entry in architecture.layer_classes
        if entry.detected
        or (entry.kind == "block" and not any(_contains(architecture, entry.name, inner) for inner in embeddings))
    ]
    inside = {inner for outer in chosen for inner in chosen if inner != outer and _contains(architecture, outer, inner)}
    return tuple(sorted(name for name in chosen if name not in inside))


def stored(architecture: Architecture, chosen: frozenset[str]) -> tuple[str, ...]:
    """Return a choice as the Plan keeps it: empty where it is what verl takes by itself."""
    return () if chosen == frozenset(resolved_classes(architecture, Fsdp())) else tuple(sorted(chosen))


def selected(architecture: Architecture, fsdp: Fsdp) -> tuple[str, ...]:
    """Return the names that are ticked: the chosen ones, else those verl finds by itself."""
    return fsdp.wrap_classes or resolved_classes(architecture, Fsdp())


def nothing_chosen(architecture: Architecture) -> str:
    """Return what an empty choice means."""
    own = resolved_classes(architecture, Fsdp())
    if own:
        return f"Nothing ticked leaves the choice to verl, which takes the model's own: {', '.join(own)}."
    return "Nothing ticked, and the model names none: fsdp makes the whole model one unit, and fsdp2 stops."


def fitting(architecture: Architecture, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the names that are classes of the model, for a Plan whose model changes."""
    present = class_names(architecture)
    return tuple(name for name in names if name in present)


def remark(architecture: Architecture, name: str) -> str:
    """Return what follows from naming this class; empty for a block."""
    entry = next((entry for entry in architecture.layer_classes if entry.name == name), None)
    if entry is None:
        if name in class_names(architecture):
            return "holds other modules only; wrapping it says nothing about its layers"
        same = next((present for present in class_names(architecture) if present.lower() == name.lower()), None)
        if same:
            return f"no class of this model: verl compares letter by letter, the class is {same}"
        return "no class of this model: verl leaves it out, and stops when no name is left"
    if entry.kind == "embedding":
        return "fsdp2 wraps embeddings by itself when they are not tied; tied, the head would find it sharded"
    if entry.kind == "head":
        return "fsdp2 wraps the head by itself when it is not tied; tied, it shares the embedding's weight"
    if entry.kind == "expert" and entry.count > architecture.num_layers:
        return "one unit an expert: ranks use different experts, their collectives no longer match, and the run hangs"
    if entry.kind == "expert":
        return "the experts of a layer apart from the rest of it: inside a layer's unit fsdp2 stops"
    if entry.count == 1 and entry.parameters > architecture.parameters // 2:
        return "most of the model in one unit: all of it is gathered at once"
    if entry.kind == "other" and not entry.detected:
        return "no repeated block: many small gathers, or a part of a layer"
    return ""


@dataclass(frozen=True)
class Outcome:
    """What verl would make of a choice."""

    units: tuple[Unit, ...]
    """Empty when verl stops."""
    text: str
    """The consequence in words."""
    stops: bool = False


def outcome(architecture: Architecture, fsdp: Fsdp) -> Outcome:
    """Return the units of a choice and its consequence."""
    try:
        units = fsdp_units(architecture, fsdp)
    except NoUnits as error:
        return Outcome((), str(error), stops=True)
    number = sum(unit.count for unit in units)
    largest = max(units, key=lambda unit: unit.parameters)
    gathered = _gathered(largest)
    parts: list[str] = []
    if fsdp.min_num_params > 0:
        parts.append(
            "fsdp cuts by size: min_num_params overrides the classes."
            if fsdp.strategy == "fsdp"
            else "fsdp2 ignores min_num_params, and verl no longer checks the names."
        )
    if not fsdp.wrap_classes and fsdp.min_num_params <= 0:
        parts.append(f"verl takes {', '.join(resolved_classes(architecture, fsdp)) or 'no class'} by itself.")
    if number == 1:
        parts.append("The whole model is one unit: every rank holds all of its parameters in each step.")
    parts.append(
        f"{number} units; the largest is {largest.name} ({largest.class_name}), {count(largest.parameters)} elements, "
        f"{gathered} when gathered in bf16."
    )
    return Outcome(units, " ".join(parts))


def unit_rows(units: tuple[Unit, ...]) -> list[tuple[str, str, str, str, str]]:
    """Return the unit table: class, how many, elements of one, bytes of one gathered in bf16, where the first is."""
    return [
        (
            unit.class_name,
            str(unit.count),
            count(unit.parameters),
            _gathered(unit),
            unit.name + (" (nested)" if unit.nested else ""),
        )
        for unit in units
    ]


def _gathered(unit: Unit) -> str:
    size_bytes = unit.parameters * BF16_BYTES
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes >= GIB / 100 else f"{size_bytes / MIB:.2f} MiB"


UNIT_COLUMNS = ("class", "units", "elements", "gathered", "first of them")


def _contains(architecture: Architecture, outer: str, inner: str) -> bool:
    def holds(group: ModuleGroup, within: bool) -> bool:
        here = within or group.class_name == outer
        return (within and group.class_name == inner) or any(holds(child, here) for child in group.children)

    return holds(architecture.modules, False)
