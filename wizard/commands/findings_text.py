"""Findings as lines for people."""

from __future__ import annotations

from wizard.findings import Finding, Fix
from wizard.text import printable


def finding_lines(finding: Finding, origin: str = "") -> list[str]:
    """Return what is wrong, when verl shows it, and what helps."""
    where = f" ({origin})" if origin else ""
    head = f"{finding.severity.value.upper()} {finding.field} = {_value(finding.value)}{where}  [{finding.id}]"
    lines = [printable(head), f"  {printable(finding.message)}", f"  when: {finding.stage.value}"]
    return lines + [f"  fix: {printable(fix_text(fix))}" for fix in finding.fixes]


def fix_text(fix: Fix) -> str:
    """Return a fix as its label and assignments."""
    changes = ", ".join(
        change.field if change.field.startswith("~") else f"{change.field}={_value(change.value)}"
        for change in fix.changes
    )
    return f"{fix.label}: {changes}"


def _value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_value(item) for item in value) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
