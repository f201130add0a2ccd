"""Applies a fix to a Plan: the same one in the TUI, on the command line and in the debugger."""

from __future__ import annotations

import dataclasses

from wizard.findings import Change, Fix
from wizard.plan import Plan, PlanError, field_specs


def apply_fix(plan: Plan, fix: Fix) -> Plan:
    """Return the Plan with the fix's changes; a verl key without a field goes to `extra_overrides`.

    Raises:
        PlanError: a change has a value that its field cannot take.
    """
    for change in fix.changes:
        plan = _apply(plan, change)
    return plan


def _apply(plan: Plan, change: Change) -> Plan:
    if change.field in field_specs():
        value = tuple(change.value) if isinstance(change.value, list) else change.value
        return plan.replace(change.field, value)
    if "." not in change.field:
        raise PlanError(f"{change.field} is neither a field of the Plan nor a verl key.")
    key = change.field.lstrip("~")
    others = tuple(entry for entry in plan.extra_overrides if entry[0] != key)
    added = () if change.field.startswith("~") else ((key, change.value),)
    return dataclasses.replace(plan, extra_overrides=(*others, *added))
