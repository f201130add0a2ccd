"""All that is known of a field: what it is, what verl does with it, and which rules watch it."""

from __future__ import annotations

from wizard.plan import Plan, spec_of
from wizard.rules import rules_of
from wizard.verl.keys import exported_keys


def field_help(path: str, plan: Plan) -> str:
    """Return help for one field as paragraphs."""
    spec = spec_of(path)
    unit = f" Unit: {spec.unit}." if spec.unit else ""
    choices = f" One of: {', '.join(spec.choices)}." if spec.choices else ""
    lines = [f"{path}\n{spec.help}{unit}{choices} Default: {spec.default!r}."]
    keys = [entry for entry in exported_keys() if entry.path == path]
    if keys:
        lines.append("verl reads it as\n" + "\n".join(f"  {entry.key}: {entry.reason}" for entry in keys))
    rules = rules_of(tuple(entry.key for entry in keys))
    if rules:
        lines.append("Rules\n" + "\n".join(f"  {rule.id}: {rule.title} ({rule.source})" for rule in rules))
    return "\n\n".join(lines)
