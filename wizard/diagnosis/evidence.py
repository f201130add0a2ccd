"""What is known about a failure, and what a known cause looks like. Standard library and the Plan only."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wizard.findings import Change, Fix
from wizard.plan import Plan


@dataclass(frozen=True)
class Evidence:
    """One failure, told by a worker's failure event or by a line of a log."""

    message: str
    """Exception type and text, or the line as logged, without colours and prefixes."""
    frames: tuple[str, ...] = ()
    """`file:function` of the stack, outermost first; empty when there was none."""
    step: str = ""
    """Step of the validation; empty in a training log."""
    rank: int | None = None
    source: str = ""
    """Process as the log names it, such as `WorkerDict pid=118848, ip=10.0.0.7`."""
    line: int = 0
    """Line of the log, from 1; 0 for an event."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Memory of the failed process at that moment, in bytes (`validation.memory_state`); empty in a log."""


class Level(enum.IntEnum):
    """How far a message can be trusted to be the cause; the lower wins, then the earlier."""

    ROOT = 0
    """Explains itself, and does not follow from another failure."""
    SYMPTOM = 1
    """A real failure that an earlier one may explain."""
    CONSEQUENCE = 2
    """Said by the survivors about a process that failed for a reason of its own."""


Fixes = Callable[["re.Match[str]", Plan], tuple[Fix, ...]]


def no_fix(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    """Return nothing: what helps is outside the Plan, and the remedy says it."""
    return ()


def set_fields(label: str, **fields: object) -> Fix:
    """Return a fix; keyword `actor__param_offload` stands for the Plan path `actor.param_offload`."""
    return Fix(label, tuple(Change(name.replace("__", "."), value) for name, value in fields.items()))


@dataclass(frozen=True)
class Cause:
    """A known cause. Its pattern is searched in single lines, so an interleaved log cannot hide it."""

    id: str
    title: str
    pattern: re.Pattern[str]
    what: str
    """What happened, one sentence; `{name}` is filled from the pattern's groups."""
    remedy: str
    level: Level = Level.ROOT
    frames: re.Pattern[str] | None = None
    """Must be found in the stack, where there is one to look at."""
    when: Callable[[Evidence], bool] | None = None
    """What the event's figures have to say besides."""
    rule: str = ""
    """The rule that finds this before the run."""
    fixes: Fixes = no_fix
    source: str = ""
    """Who prints the message: project, version and file."""


@dataclass(frozen=True)
class Hit:
    """A cause recognised in a piece of evidence."""

    cause: Cause
    evidence: Evidence
    match: re.Match[str]
    stack_match: re.Match[str] | None = None

    @property
    def groups(self) -> dict[str, str]:
        """What the cause's sentences are filled with: the named groups of both patterns, empty where not found."""
        both = self.match.groupdict() | (self.stack_match.groupdict() if self.stack_match else {})
        return {name: value or "" for name, value in both.items()}


def recognise(evidence: Evidence, causes: tuple[Cause, ...]) -> Hit | None:
    """Return the first cause whose pattern, and stack pattern where it has one, fit the evidence."""
    stack = "\n".join(evidence.frames)
    for cause in causes:
        match = cause.pattern.search(evidence.message)
        if match is None or (cause.when is not None and not cause.when(evidence)):
            continue
        stack_match = cause.frames.search(stack) if cause.frames else None
        if cause.frames is None or stack_match:
            return Hit(cause, evidence, match, stack_match)
    return None
