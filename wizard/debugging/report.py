"""The report of a debugging session, to attach to a bug report: nothing in it is secret or personal."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from wizard import __version__
from wizard.debugging.session import Attempt
from wizard.debugging.text import attempt_text, diagnosis_text, history
from wizard.plan_file import plan_to_yaml
from wizard.scrub import scrub
from wizard.text import printable

FILE_NAME = "report.md"
LOG_LINES = 120
"""Of the end of a failed rung's log."""


def report_text(attempts: Sequence[Attempt], environment: str) -> str:
    """Return the report as Markdown: environment, every attempt with its rungs, the Plan at the end, log tails.

    Args:
        environment: what `verl-wizard doctor` prints.
    """
    return scrub("\n\n".join(_blocks(attempts, environment)) + "\n")


def _blocks(attempts: Sequence[Attempt], environment: str) -> Iterator[str]:
    last = attempts[-1]
    yield "# Report of verl-wizard debug"
    end = "The last attempt passed." if last.passed else "No attempt passed."
    yield f"verl-wizard {__version__}, Plan for verl {last.plan.target.verl_version}. Attempts: {len(attempts)}. {end}"
    yield "## Environment"
    yield _fenced(environment)
    for attempt, (title, changes) in zip(attempts, history(attempts), strict=True):
        yield f"## {title}"
        if changes:
            yield "\n".join(f"- `{line}`" for line in changes)
        yield _fenced(attempt_text(attempt))
        if attempt.diagnosis is not None:
            yield _fenced(diagnosis_text(attempt.diagnosis))
        stopped = attempt.results[-1] if attempt.results else None
        if stopped is not None and stopped.stops and stopped.log_tail:
            yield f"End of the log of rung {stopped.rung.name}:"
            yield _fenced(_tail(stopped.log_tail))
    yield "## Plan"
    # The inspector finds the architecture again; its module tree would be most of the report.
    yield _fenced(plan_to_yaml(dataclasses.replace(last.plan, architecture=None, critic_architecture=None)), "yaml")


def _tail(log: str) -> str:
    return "\n".join(printable(line.expandtabs()) for line in log.splitlines()[-LOG_LINES:])


def _fenced(text: str, language: str = "") -> str:
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
