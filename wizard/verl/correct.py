"""Applies the rules' fixes to an imported configuration until nothing more can be fixed, keeping the person's file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from wizard.findings import Change, Finding, Severity
from wizard.rules import Facts, check_config
from wizard.verl.config import Assignment, Mode, VerlConfig
from wizard.verl.importer import Imported
from wizard.verl.overrides import override_text

ROUNDS = 40
"""More than any configuration has findings with fixes; fixes that undo each other end here."""


@dataclass(frozen=True)
class Correction:
    """The corrected configuration, as a file's text or as overrides."""

    config: VerlConfig
    document: str | None
    """YAML text with the person's comments; None for an argument list."""
    overrides: tuple[str, ...]


def corrected(found: Imported, facts: Facts) -> Correction:
    """Apply first fixes, errors before warnings, until no finding with a fix is left or fixes no longer help."""
    config, applied = found.config, list[tuple[Change, ...]]()
    for _ in range(ROUNDS):
        finding = _next(config, facts, applied)
        if finding is None:
            break
        changes = finding.fixes[0].changes
        applied.append(changes)
        config = _changed(config, finding, changes)
    if found.document is None or found.kind == "argv":
        return Correction(config, None, _as_overrides(config))
    if found.kind == "overrides":
        return Correction(config, "".join(f"- {_quoted(text)}\n" for text in _as_overrides(config)), ())
    return Correction(config, _as_yaml(found, config), ())


def diff_of(found: Imported, result: Correction, target: Path) -> str:
    """Return what changed, as a unified diff."""
    before = found.document.text if found.document else ""
    lines = difflib.unified_diff(
        before.splitlines(), (result.document or "").splitlines(), found.source, str(target), lineterm=""
    )
    return "\n".join(lines) or "nothing to change"


def still_wrong(result: Correction, facts: Facts) -> bool:
    """Return whether an error-level finding is left."""
    return any(finding.severity is Severity.ERROR for finding in check_config(result.config, facts))


def _next(config: VerlConfig, facts: Facts, applied: list[tuple[Change, ...]]) -> Finding | None:
    fixable = [
        finding
        for finding in check_config(config, facts)
        if finding.fixes and finding.severity is not Severity.NOTE and finding.fixes[0].changes not in applied
    ]
    return min(fixable, key=lambda finding: finding.severity is not Severity.ERROR, default=None)


def _changed(config: VerlConfig, finding: Finding, changes: tuple[Change, ...]) -> VerlConfig:
    """Set the keys and take away those marked `~`; a misspelt one that the fix replaces goes."""
    targets = {change.field.lstrip("+"): change for change in changes if not change.field.startswith("~")}
    gone = [change.field[1:] for change in changes if change.field.startswith("~")]
    if finding.id in ("unknown-key", "hydra-refuses", "legacy-reward") and finding.field not in targets:
        gone.append(finding.field)
    for key in (*gone, *targets):
        config = config.unset(key)
    new = (Assignment(key, change.value, _mode(config, key)) for key, change in targets.items())
    return VerlConfig(config.schema, (*config.assignments, *new), groups=config.groups, source=config.source)


def _mode(config: VerlConfig, key: str) -> Mode:
    if any(entry.mode == "file" for entry in config.assignments):
        return "file"
    return "+" if config.schema.needs_plus(key) else ""


def _as_overrides(config: VerlConfig) -> tuple[str, ...]:
    groups = [f"{name}={value}" for name, value in config.groups.items()]
    return (*groups, *(override_text(entry.key, entry.value, entry.mode) for entry in config.assignments))


def _quoted(text: str) -> str:
    import yaml

    return yaml.safe_dump(text, width=10**6, default_flow_style=True).removesuffix("...\n").strip()


def _as_yaml(found: Imported, config: VerlConfig) -> str:
    """Write the changes into the person's own file, comments and order kept."""
    from ruamel.yaml import YAML

    assert found.document is not None
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    data = yaml.load(found.document.text)
    if found.kind == "plan":
        from wizard.plan import Plan
        from wizard.plan_file import plan_to_yaml
        from wizard.verl.importer import config_to_plan

        return plan_to_yaml(config_to_plan(config, found.plan or Plan()))
    before, after = dict(found.config.given), dict(config.given)
    for key in before.keys() - after.keys():
        _remove(data, key.split("."))
    for key, value in after.items():
        if key not in before or before[key] != value:
            _put(data, key.split("."), value)
    stream = StringIO()
    yaml.dump(data, stream)
    return stream.getvalue()


def _put(data: Any, path: list[str], value: Any) -> None:
    for name in path[:-1]:
        if not isinstance(data.get(name), dict):
            data[name] = {}
        data = data[name]
    data[path[-1]] = value


def _remove(data: Any, path: list[str]) -> None:
    owners = [data]
    for name in path[:-1]:
        if not isinstance(owners[-1], dict) or name not in owners[-1]:
            return
        owners.append(owners[-1][name])
    owners[-1].pop(path[-1], None)
    for owner, name in zip(reversed(owners[:-1]), reversed(path[:-1]), strict=True):
        if not owner[name]:
            del owner[name]
