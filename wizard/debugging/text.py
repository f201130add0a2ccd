"""The ladder in words: rows of its table, one attempt, what a fix changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from wizard.debugging.ladder import ABOUT
from wizard.debugging.session import Attempt, RungResult
from wizard.diagnosis import Diagnosis
from wizard.findings_text import fix_text, value_text
from wizard.plan import Plan
from wizard.plan_diff import difference
from wizard.text import gib, printable, table

HEAD = ("rung", "verdict", "loss", "gradient", "time", "peak", "what it adds")


def cells(result: RungResult) -> tuple[str, ...]:
    """Return the cells of one rung under `HEAD`; the peak is of the fullest rank."""
    observed = result.observed
    ran = bool(observed.metrics)
    return (
        result.rung.name,
        f"{result.outcome}, kept" if result.kept else result.outcome,
        _number(observed.number("loss")),
        _number(observed.number("gradient_norm")),
        f"{result.seconds:.1f} s" if ran else "",
        gib(observed.peak_bytes) if observed.peak_bytes else "",
        result.why if result.outcome in ("skipped", "does not fit") else ABOUT[result.rung.name],
    )


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5g}"


def attempt_text(attempt: Attempt) -> str:
    """Return the table of an attempt's rungs."""
    return table(HEAD, [cells(result) for result in attempt.results], indent="")


def diagnosis_text(found: Diagnosis) -> str:
    """Return a diagnosis as lines for people."""
    where = f"line {found.evidence.line}" if found.evidence.line else f"step {found.evidence.step or 'unknown'}"
    who = found.evidence.source or (f"rank {found.evidence.rank}" if found.evidence.rank is not None else "")
    lines = [
        f"{found.title}  [{found.cause}]",
        f"  {found.what}",
        f"  {found.remedy}",
        f"  seen: {where}{', ' + who if who else ''}: {found.evidence.message[:300]}",
        *(f"  fix: {fix_text(fix)}" for fix in found.fixes),
    ]
    if found.rule:
        lines.append(f"  rule: verl-wizard explain {found.rule}")
    lines += [f"  also: {title} (line {line})" for title, line in found.others]
    return "\n".join(map(printable, lines))


def change_lines(before: Plan, after: Plan) -> list[str]:
    """Return what differs between two Plans, a line a field."""
    return [
        printable(f"{path}: {value_text(old)} -> {value_text(new)}") for path, old, new in difference(before, after)
    ]


def history(attempts: Sequence[Attempt]) -> Iterator[tuple[str, list[str]]]:
    """Yield every attempt as a heading and the lines of what its Plan changed against the one before."""
    for number, attempt in enumerate(attempts, 1):
        if number == 1:
            yield f"Attempt {number}: the Plan as given", []
            continue
        label = printable(attempt.fix.label) if attempt.fix else ""
        yield f"Attempt {number}: {label}", change_lines(attempts[number - 2].plan, attempt.plan)
