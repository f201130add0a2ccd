"""What a rule says about a configuration, and what would put it right."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Severity(str, Enum):
    """How much a finding matters."""

    ERROR = "error"
    """verl stops, or trains on something wrong."""
    WARNING = "warning"
    """verl runs, but it costs memory, time or quality."""
    NOTE = "note"
    """Worth knowing; nothing to do."""


class Stage(str, Enum):
    """When verl would show (or hide) the fault."""

    ENVIRONMENT = "environment"
    """Before verl starts: versions, drivers, visible devices."""
    COMPOSITION = "composition"
    """While Hydra composes the configuration."""
    DRIVER = "driver"
    """In `validate_config`, before Ray starts."""
    TRAINER = "trainer"
    """In the trainer's constructor: data set, resource pools."""
    WORKERS = "workers"
    """While workers build their dataclasses and FSDP engines."""
    ROLLOUT = "rollout"
    """While the rollout server starts."""
    FIRST_STEP = "first-step"
    """At the first training step."""
    SILENT = "silent"
    """Never: verl says nothing."""


@dataclass(frozen=True)
class Change:
    """One assignment; `field` is a verl key (`actor_rollout_ref.…`) or a Plan path (`actor.reduce_dtype`).

    As on Hydra's command line, `+key` adds a key that verl's YAML lacks, and `~key` takes away what was given.
    """

    field: str
    value: Any


@dataclass(frozen=True)
class Fix:
    """A remedy as data: the TUI, `check --fix` and the debugger apply the same one."""

    label: str
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Finding:
    """One judgement of one rule. `fixes` are ranked, the first is the one a single key applies."""

    id: str
    severity: Severity
    field: str
    value: Any
    message: str
    stage: Stage
    fixes: tuple[Fix, ...] = ()
    source: str = ""
