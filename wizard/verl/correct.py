"""Applies the rules' fixes to an imported configuration until nothing more can be fixed, keeping the person's file."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from wizard.findings import Change, Finding, Severity
from wizard.plan_file import plan_to_yaml
from wizard.rules import Facts, check_config
from wizard.verl.config import Assignment, Mode, VerlConfig
from wizard.verl.importer import HYDRA_OWN, Imported, config_to_plan
from wizard.verl.overrides import override_text
from wizard.verl.reader import ReadError, flat, read_text

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
    return yaml.safe_dump(text, width=10**6, default_flow_style=True).removesuffix("...\n").strip()


def _as_yaml(found: Imported, config: VerlConfig) -> str:
    """Write the changes into the person's own file; order, comments, indentation and line ends are kept.

    Where the file shares blocks by alias or merge key, a change of one would change the others: then every value is
    written out.
    """
    assert found.document is not None
    if found.plan is not None:
        return plan_to_yaml(config_to_plan(config, found.plan))
    before, after = found.config.given, config.given
    changed = {key: value for key, value in after.items() if key not in before or before[key] != value}
    if not changed and before.keys() == after.keys():
        return found.document.text
    if _is_json(found.document.text):
        return json.dumps(_nested(found, after), indent=2, ensure_ascii=False) + "\n"
    old = found.document.text.replace("\r\n", "\n")
    text = _edited(old, [key for key in before if key not in after], changed)
    if text is None or dict(_leaves_of(text)) != {**dict(_leaves_of(old, HYDRA_OWN)), **after}:
        text = yaml.safe_dump(_nested(found, after), sort_keys=False, allow_unicode=True, width=120)
    # ruamel ties a comment to the key above it: one whose key is gone finds its place at the end.
    kept = {line.strip() for line in text.splitlines()}
    lost = [line.strip() for line in old.splitlines() if line.lstrip()[:1] == "#" and line.strip() not in kept]
    text += "".join(f"{line}\n" for line in lost)
    return text.replace("\n", "\r\n") if "\r\n" in found.document.text else text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _edited(text: str, gone: Sequence[str], changed: Mapping[str, Any]) -> str | None:
    """Return the file with keys taken away and set, None where ruamel cannot."""
    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 4096
    block = re.search(r"^[^\s#-][^\n]*:[ \r]*\n( +)[^\s#-]", text, re.MULTILINE)
    items = re.search(r"^( *)[^\s#-][^\n]*:[ \r]*\n( *)- ", text, re.MULTILINE)
    offset = len(items[2]) - len(items[1]) if items else 0
    editor.indent(mapping=len(block[1]) if block else 2, sequence=max(0, offset) + 2, offset=max(0, offset))
    try:
        data = editor.load(text)
        for key in gone:
            _remove(data, key.split("."))
        for key, value in changed.items():
            _put(data, key.split("."), value)
        stream = StringIO()
        editor.dump(data, stream)
    except (YAMLError, LookupError, TypeError, ValueError):
        return None
    return stream.getvalue()


def _leaves_of(text: str, sections: Container[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a file, or of some of its top-level sections."""
    try:
        value = read_text(text, "").value
    except ReadError:
        return
    for path, leaf in flat(value if isinstance(value, dict) else {}):
        if path and (sections is None or path[0] in sections):
            yield ".".join(path), leaf


def _nested(found: Imported, given: Mapping[str, Any]) -> dict[str, Any]:
    assert found.document is not None
    tree: dict[str, Any] = {k: v for k, v in found.document.value.items() if k in HYDRA_OWN}
    for key, value in given.items():
        _put(tree, key.split("."), value)
    return tree


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
