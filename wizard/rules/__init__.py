"""What breaks verl, costs memory, or goes wrong in silence: rules over a configuration and the facts around it."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping

from wizard.findings import Change, Finding, Fix
from wizard.fixing import apply_fix
from wizard.plan import Plan
from wizard.rules import (
    algorithm,
    batches,
    cluster,
    keys,
    lora,
    offload,
    parallel,
    precision,
    resources,
    roles,
    rollout,
    trainer,
    versions,
    wrap,
)
from wizard.rules.case import Case, Facts
from wizard.rules.placement import PLACEMENT_RULES, check_placement
from wizard.rules.registry import RuleInfo, all_rules, findings_of
from wizard.verl.config import VerlConfig
from wizard.verl.export import plan_to_config
from wizard.verl.keys import ExportedKey, Unmappable, exported_keys
from wizard.verl.pools import launched_ranks
from wizard.verl.versions import from_version

MODULES = (
    keys, batches, parallel, wrap, precision, offload, rollout, lora, roles, algorithm, trainer,
    cluster, resources, versions,
)  # fmt: skip
"""Importing them registers their rules."""
ALL_RULES = (*all_rules(), *PLACEMENT_RULES.values())


class NoSuchRule(KeyError):
    """No rule of that id; the message offers the nearest."""


def check_config(config: VerlConfig, facts: Facts) -> tuple[Finding, ...]:
    """Return the findings of a configuration, fields and fixes in verl keys. A rule without its facts says nothing."""
    return tuple(findings_of(Case(config, facts)))


def check_plan(
    plan: Plan, installed: Mapping[str, str] | None = None, visible_devices: str | None = None
) -> tuple[Finding, ...]:
    """Return the findings of a Plan, fields and fixes as Plan paths where the Plan has one."""
    facts = Facts(
        machine=plan.machine if plan.machine.gpus_per_node or plan.machine.host_cpus else None,
        architecture=plan.architecture,
        critic_architecture=plan.critic_architecture,
        versions=installed or {},
        visible_devices=visible_devices,
        ranks=launched_ranks(plan),
    )
    config = plan_to_config(plan)
    minor = config.schema.minor
    found = [_in_plan_words(finding, plan, minor) for finding in check_config(config, facts)]
    return (*_once(found), *check_placement(plan))


def explain(id: str) -> RuleInfo:
    """Return one rule.

    Raises:
        NoSuchRule: there is none of that id.
    """
    by_id = {info.id: info for info in ALL_RULES}
    if id not in by_id:
        near = difflib.get_close_matches(id, by_id, n=1)
        raise NoSuchRule(f"{id} is no rule." + (f" Did you mean {near[0]}?" if near else ""))
    return by_id[id]


def rules_of(verl_keys: tuple[str, ...]) -> tuple[RuleInfo, ...]:
    """Return the rules that look at one of these keys."""
    return tuple(info for info in ALL_RULES if set(info.fields) & set(verl_keys))


def _in_plan_words(finding: Finding, plan: Plan, minor: tuple[int, int]) -> Finding:
    entry = _entry(finding.field, minor)
    field, value = finding.field, finding.value
    if entry and entry.path:
        field = _own_path(entry.path, plan)
        value = plan.get(field)
    fixes = tuple(_fix_in_plan_words(fix, plan, minor) for fix in finding.fixes)
    return dataclasses.replace(finding, field=field, value=value, fixes=fixes)


def _own_path(path: str, plan: Plan) -> str:
    """Return the actor's field for a role that follows it: there is where the person decides it."""
    section, name = path.split(".")
    return f"actor.{name}" if section in ("ref", "critic") and getattr(plan, section) is None else path


def _fix_in_plan_words(fix: Fix, plan: Plan, minor: tuple[int, int]) -> Fix:
    changes: dict[str, Change] = {}
    for change in fix.changes:
        translated = _change_in_plan_words(change, plan, minor)
        changes.setdefault(translated.field, translated)
    return Fix(fix.label, tuple(changes.values()))


def _change_in_plan_words(change: Change, plan: Plan, minor: tuple[int, int]) -> Change:
    entry = _entry(change.field, minor)
    if entry is None or not entry.path:
        return change
    try:
        return Change(_own_path(entry.path, plan), entry.from_verl(change.value))
    except Unmappable:
        return change


def _entry(verl_key: str, minor: tuple[int, int]) -> ExportedKey | None:
    key = from_version(verl_key, minor)
    return next((entry for entry in exported_keys() if entry.key == key), None)


def _once(findings: list[Finding]) -> list[Finding]:
    """Drop what roles that follow the actor would say again."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for finding in findings:
        signature = (finding.id, finding.field)
        if signature not in seen:
            seen.add(signature)
            kept.append(finding)
    return kept


__all__ = [
    "ALL_RULES",
    "Facts",
    "NoSuchRule",
    "RuleInfo",
    "apply_fix",
    "check_config",
    "check_plan",
    "explain",
    "rules_of",
]
