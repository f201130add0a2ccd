"""Finds the first cause of a failure: in a validation's failure event, or in the log of a training run."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from wizard.diagnosis.causes import CAUSES
from wizard.diagnosis.evidence import Evidence, Hit, Level, recognise
from wizard.diagnosis.log_lines import LogLine
from wizard.diagnosis.memory_text import memory_text, with_gpu
from wizard.findings import Fix
from wizard.plan import Plan
from wizard.validation.verdict import Verdict

STACK_FRAMES = 60
"""Frames kept of a stack; verl's deepest, through FSDP and autograd, has about 40."""
OTHER_CAUSES = 5
QUIET_SHAPES = 50_000
"""Shapes of harmless lines that are remembered: logs repeat themselves, and trying all causes costs 60 µs a line."""

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+, in (?P<function>.+)$')
_STACK_STARTS = re.compile(r"^\s*Traceback \(most recent call last\):|RayTaskError")
_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)\b(?:\(\w+\))?(?::|$)")
_SECONDARY = re.compile(
    r"RayTaskError|ActorDied|ActorUnavailable|RayActorError|ChildFailedError|KeyboardInterrupt|Warning\b"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_NUMBERS_MATTER = re.compile(r"(?i)error|exception|errno|signal|exit")


@dataclass(frozen=True)
class Diagnosis:
    """What happened, why, and what would put it right; `fixes` are ranked, cheapest first."""

    cause: str
    """Id of the cause, `unknown` where none is known."""
    title: str
    what: str
    remedy: str
    evidence: Evidence
    fixes: tuple[Fix, ...] = ()
    rule: str = ""
    source: str = ""
    others: tuple[tuple[str, int], ...] = ()
    """Further causes seen: title and first line, in the log's order."""


@dataclass
class _Reading:
    """What a pass over a log has found so far."""

    hits: dict[str, Hit] = field(default_factory=dict)
    """The first hit of each cause."""
    first_error: Evidence | None = None
    last_error: Evidence | None = None


def diagnose(evidence: Evidence, plan: Plan) -> Diagnosis:
    """Judge one failure, such as a worker's failure event."""
    hit = recognise(evidence, CAUSES)
    return _told(hit, plan, ()) if hit else _unknown(evidence)


def diagnose_verdict(verdict: Verdict, plan: Plan) -> Diagnosis | None:
    """Judge how a validation ended; None for one that did not fail."""
    if verdict.outcome in ("passed", "cancelled"):
        return None
    told = verdict.failure
    frames = tuple(map(str, told["frames"])) if isinstance(told.get("frames"), (list, tuple)) else ()
    message = verdict.sentence if verdict.outcome == "timed out" else verdict.cause
    sizes = told["memory"] if isinstance(told.get("memory"), dict) else {}
    memory = {name: size for name, size in sizes.items() if isinstance(size, int)}
    return diagnose(Evidence(message, frames, verdict.step, verdict.rank, memory=memory), plan)


def diagnose_log(lines: Iterable[LogLine], plan: Plan) -> Diagnosis | None:
    """Judge a training log; None when it holds no failure at all.

    The cause is the hit of the most trustworthy level, and among these the earliest: what other processes say
    about a dead one, and the traceback the driver ends with, come last.
    """
    reading = _read(lines)
    ranked = sorted(reading.hits.values(), key=lambda hit: (hit.cause.level, hit.evidence.line))
    if not ranked or (ranked[0].cause.level is Level.CONSEQUENCE and reading.first_error is not None):
        error = reading.first_error or reading.last_error
        return _unknown(error) if error else None
    others = sorted(ranked[1 : 1 + OTHER_CAUSES], key=lambda hit: hit.evidence.line)
    return _told(ranked[0], plan, tuple((hit.cause.title, hit.evidence.line) for hit in others))


def _read(lines: Iterable[LogLine]) -> _Reading:
    reading = _Reading()
    quiet: set[str] = set()
    for evidence in _evidence(lines):
        shape = _NUMBER.sub("0", evidence.message)
        if shape in quiet:
            continue
        hit = recognise(evidence, CAUSES)
        if hit is not None:
            reading.hits.setdefault(hit.cause.id, hit)
        elif len(quiet) < QUIET_SHAPES and not _NUMBERS_MATTER.search(shape):
            quiet.add(shape)
        if _ERROR.match(evidence.message):
            reading.last_error = evidence
            if hit is None and reading.first_error is None and not _SECONDARY.search(evidence.message):
                reading.first_error = evidence
    return reading


def _evidence(lines: Iterable[LogLine]) -> Iterator[Evidence]:
    """Yield every line that is no stack frame, with the stack its process printed just before."""
    stacks: dict[str, deque[str]] = {}
    for line in lines:
        stack = stacks.setdefault(line.source, deque(maxlen=STACK_FRAMES))
        frame = _FRAME.match(line.text)
        if frame:
            stack.append(f"{frame['file']}:{frame['function']}")
            continue
        if _STACK_STARTS.search(line.text):
            # Ray prints the stacks of caller and worker one after the other: the inner one is the worker's.
            stack.clear()
        elif line.text.startswith((" ", "\t")) and stack:
            continue
        yield Evidence(line.text, tuple(stack), rank=line.rank, source=line.source, line=line.number)
        if _ERROR.match(line.text):
            stack.clear()


def _told(hit: Hit, plan: Plan, others: tuple[tuple[str, int], ...]) -> Diagnosis:
    cause, groups = hit.cause, hit.groups
    return Diagnosis(
        cause.id,
        cause.title,
        " ".join(filter(None, (cause.what.format(**groups), memory_text(hit.evidence.memory, cause.id)))),
        cause.remedy.format(**groups),
        hit.evidence,
        cause.fixes(hit.match, with_gpu(plan, hit.evidence.memory)),
        cause.rule,
        cause.source,
        others,
    )


def _unknown(evidence: Evidence) -> Diagnosis:
    where = f" (line {evidence.line})" if evidence.line else f" in step {evidence.step}" if evidence.step else ""
    return Diagnosis(
        "unknown",
        "unknown cause",
        f"The first error is {evidence.message[:300]!r}{where}; no known cause matches it.",
        "Look at the stack above that line"
        + (f", innermost frame {evidence.frames[-1]}" if evidence.frames else "")
        + ". What the processes print after it is a consequence.",
        evidence,
    )
