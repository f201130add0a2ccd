"""What a rule is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from wizard.findings import Change, Finding, Fix, Severity, Stage
from wizard.rules.case import Case


@dataclass(frozen=True)
class Found:
    """One place where a rule does not hold."""

    field: str
    """verl key."""
    message: str
    """What verl does with it and what helps; field and value are shown beside it."""
    fixes: tuple[Fix, ...] = ()
    severity: Severity | None = None
    """Where it differs from the rule's."""
    stage: Stage | None = None


@dataclass(frozen=True)
class RuleInfo:
    """One rule as it is listed and explained."""

    id: str
    title: str
    """What must hold, or what goes wrong, in one line."""
    severity: Severity
    stage: Stage
    fields: tuple[str, ...]
    """verl keys it looks at."""
    source: str
    """Where verl (or torch, vLLM, Ray) does it: version, file, function."""
    explanation: str
    """What verl does and why it matters."""
    check: Callable[[Case], Iterable[Found]]


_RULES: dict[str, RuleInfo] = {}


def rule(
    id: str, title: str, severity: Severity, stage: Stage, fields: tuple[str, ...], source: str
) -> Callable[[Callable[[Case], Iterable[Found]]], Callable[[Case], Iterable[Found]]]:
    """Register a function as a rule; its docstring is the explanation."""

    def register(check: Callable[[Case], Iterable[Found]]) -> Callable[[Case], Iterable[Found]]:
        assert id not in _RULES, id
        explanation = " ".join((check.__doc__ or "").split())
        _RULES[id] = RuleInfo(id, title, severity, stage, fields, source, explanation, check)
        return check

    return register


def all_rules() -> tuple[RuleInfo, ...]:
    """Return the registered rules in the order of their modules."""
    return tuple(_RULES.values())


def findings_of(case: Case) -> Iterator[Finding]:
    """Yield what every rule finds in a case."""
    for info in _RULES.values():
        for found in info.check(case):
            yield Finding(
                id=info.id,
                severity=found.severity or info.severity,
                field=found.field,
                value=case.config.get(found.field, case.config.refused.get(found.field)),
                message=found.message,
                stage=found.stage or info.stage,
                fixes=found.fixes,
                source=info.source,
            )


def change(label: str, **values: Any) -> Fix:
    """Return a fix of verl keys; `__` in a name stands for a dot."""
    return Fix(label, tuple(Change(name.replace("__", "."), value) for name, value in values.items()))


def set_key(key: str, value: Any, label: str = "") -> Fix:
    """Return a fix that gives one verl key a value."""
    text = str(value).lower() if isinstance(value, bool) else value
    return Fix(label or f"{key.rsplit('.', 1)[-1]} = {text}", (Change(key, value),))
