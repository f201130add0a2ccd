"""Two Plans side by side: which answers differ, and what each costs. Pure."""

from __future__ import annotations

from typing import Any

from wizard.memory import PredictionError, predict
from wizard.memory.roofline import step_time
from wizard.model.units import NoUnits
from wizard.plan import Plan, field_specs
from wizard.text import gib, printable, table


def difference(one: Plan, other: Plan) -> tuple[tuple[str, Any, Any], ...]:
    """Return every field whose value differs, in the Plan's order: path, value here, value there.

    Roles that follow the actor in both Plans say nothing of their own.
    """
    followers = [role for role in ("ref", "critic") if getattr(one, role) is None and getattr(other, role) is None]
    paths = [path for path in field_specs() if path.split(".")[0] not in followers]
    pairs = ((path, one.get(path), other.get(path)) for path in paths)
    found = [pair for pair in pairs if pair[1] != pair[2]]
    ours, theirs = dict(one.extra_overrides), dict(other.extra_overrides)
    found += [
        (key, ours.get(key, ""), theirs.get(key, ""))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]
    return tuple(found)


def difference_text(one: Plan, other: Plan, name: str, other_name: str) -> str:
    """Return the differences and the costs as a table."""
    rows = [(path, str(left), str(right)) for path, left, right in difference(one, other)]
    costs = [(what, left, right) for (what, left), (_, right) in zip(_costs(one), _costs(other), strict=True)]
    if not rows:
        return f"{printable(other_name)} gives the same answers."
    return table(("", name, other_name), [*rows, ("", "", ""), *costs], indent="")


def _costs(plan: Plan) -> list[tuple[str, str]]:
    try:
        prediction = predict(plan)
        peak = f"{gib(prediction.peak.needed_bytes)} in {prediction.peak.name}"
        host = gib(prediction.host_bytes_per_node)
        seconds = f"{step_time(plan).seconds:.3g} s"
    except (PredictionError, NoUnits) as error:
        peak = host = seconds = str(error)
    return [("predicted peak of a GPU", peak), ("host memory a node", host), ("an update, by roofline", seconds)]
