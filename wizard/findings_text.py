"""Findings as lines for people, and as JSON for programs."""

from __future__ import annotations

import math
from typing import Any

from wizard.findings import Finding, Fix
from wizard.placing import groups_text
from wizard.plan import GpuGroup
from wizard.scrub import HIDDEN, hide_secrets, is_secret
from wizard.text import printable


def finding_lines(finding: Finding, origin: str = "") -> list[str]:
    """Return what is wrong, when verl shows it, and what helps."""
    where = f" ({origin})" if origin else ""
    shown = value_text(_shown(finding.field, finding.value))
    head = f"{finding.severity.value.upper()} {finding.field} = {shown}{where}  [{finding.id}]"
    lines = [head, f"  {finding.message}", f"  when: {finding.stage.value}"]
    lines += [f"  fix: {fix_text(fix)}" for fix in finding.fixes]
    return [printable(hide_secrets(line)) for line in lines]


def fix_text(fix: Fix) -> str:
    """Return a fix as its label and assignments."""
    changes = ", ".join(
        change.field
        if change.field.startswith("~")
        else f"{change.field}={value_text(_shown(change.field, change.value))}"
        for change in fix.changes
    )
    return f"{fix.label}: {changes}"


def value_text(value: object) -> str:
    """Return a value as Hydra's command line takes it."""
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(value_text(item) for item in value) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def finding_data(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON is written of it; of the fixes, the first one's assignments."""
    return {
        "id": finding.id,
        "severity": finding.severity.value,
        "field": finding.field,
        "value": _finite(_shown(finding.field, finding.value)),
        "message": hide_secrets(finding.message),
        "stage": finding.stage.value,
        "fixes": [
            {"field": change.field, "value": _finite(_shown(change.field, change.value))}
            for fix in finding.fixes[:1]
            for change in fix.changes
        ],
    }


def _shown(field: str, value: Any) -> Any:
    if isinstance(value, tuple) and value and all(isinstance(item, GpuGroup) for item in value):
        # As the placement step takes them.
        return groups_text(value)
    return HIDDEN if is_secret(field, value) else value


def _finite(value: Any) -> Any:
    """Return the value with `.nan` and `.inf` as texts: JSON has no word for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(name): _finite(child) for name, child in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
