"""The ladder of `verl-wizard debug CONFIG`: rung after rung, the diagnosis, a fix, and again."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from wizard.commands.options import fail, reason
from wizard.commands.run_options import cancel_on_signals, make_spec
from wizard.debugging.report import FILE_NAME as REPORT_NAME
from wizard.debugging.report import report_text
from wizard.debugging.session import AGAIN, Attempt, DebugSession, RungResult, RungStarted
from wizard.debugging.text import HEAD, cells, change_lines, diagnosis_text
from wizard.diagnosis import Diagnosis
from wizard.files import FileExists, unused, write_atomic
from wizard.findings import Fix
from wizard.findings_text import fix_text
from wizard.model.errors import ModelError
from wizard.model.resolve import resolve_model
from wizard.plan import Plan, PlanError
from wizard.scrub import scrub
from wizard.text import printable
from wizard.validation.verl_plan import EngineError
from wizard.verl.importer import plan_from_file
from wizard.verl.schema import SchemaError

MOST_ATTEMPTS = 8
"""Of `--fix`: each costs a climb."""
WIDTHS = (11, 12, 9, 9, 8, 10)
"""Columns of the rung table but the last; a rung's line is printed when the rung is done."""

Choose = Callable[[DebugSession], "Fix | None"]


def climb(arguments: argparse.Namespace, target: Path) -> int:
    """Climb with the configuration until it passes or nothing is left to try.

    Exit 0 when the Plan's own run passed, 1 when not, 2 when there is nothing to climb with, 130 when cancelled.
    """
    if arguments.report is not None and arguments.report.exists() and not arguments.overwrite:
        return fail(f"--report {arguments.report}: the file exists. Choose another name, or add --overwrite.", 2)
    try:
        plan = _plan(target, arguments.python)
        session = DebugSession(plan, lambda plan: make_spec(arguments, plan), checks=not arguments.no_checks)
        teller = _JsonLines() if arguments.json else _Table()
        code = _attempts(session, teller, _chooser(arguments))
    except (PlanError, SchemaError, EngineError) as error:
        return fail(str(error), 2)
    except ModelError as error:
        return fail(str(error))
    except OSError as error:
        return fail(reason(error), 2)
    return _conclude(session, arguments, code)


def _plan(target: Path, python: str) -> Plan:
    plan, _ = plan_from_file(target)
    if python:
        plan = dataclasses.replace(plan, target=dataclasses.replace(plan.target, python=python))
    if plan.architecture is None:
        model = plan.model
        found = resolve_model(
            model.id,
            python=plan.target.python,
            revision=model.revision,
            trust_remote_code=model.trust_remote_code,
        )
        plan = dataclasses.replace(plan, architecture=found)
    return plan


def _attempts(session: DebugSession, teller: _Table | _JsonLines, choose: Choose) -> int:
    before: Plan | None = None
    while True:
        teller.attempt(len(session.attempts), session.attempt, before)
        try:
            asyncio.run(_one(session, teller))
        except KeyboardInterrupt:
            return 130
        attempt = session.attempt
        if attempt.diagnosis is not None:
            teller.diagnosis(attempt.diagnosis)
        if attempt.passed:
            return 0
        if attempt.results and attempt.results[-1].outcome == "cancelled":
            return 130
        fix = choose(session)
        if fix is None:
            return 1
        before = session.plan
        session.apply(fix)


async def _one(session: DebugSession, teller: _Table | _JsonLines) -> None:
    cancel_on_signals(session.cancel)
    async for step in session.climb():
        if isinstance(step, RungStarted):
            teller.started(step.rung.name)
        elif isinstance(step, RungResult):
            teller.rung(step)


def _chooser(arguments: argparse.Namespace) -> Choose:
    if arguments.fix:
        return _first
    return _ask if _interactive(arguments) else lambda session: None


def _interactive(arguments: argparse.Namespace) -> bool:
    return not arguments.json and not arguments.fix and sys.stdin.isatty() and sys.stdout.isatty()


def _first(session: DebugSession) -> Fix | None:
    fixes = session.fixes
    if fixes and len(session.attempts) < MOST_ATTEMPTS:
        return fixes[0]
    print("verl-wizard: no fix is left to try", file=sys.stderr)
    return None


def _ask(session: DebugSession) -> Fix | None:
    """Ask what to do; None ends the session."""
    fixes = session.fixes
    for number, fix in enumerate(fixes, 1):
        print(f"  {number}  {printable(fix_text(fix))}")
    print("  r  run again, after something outside the Plan was mended")
    print("  w  write a report")
    print("  q  stop here")
    while True:
        try:
            answer = input("> ").strip().lower()
        except EOFError:
            return None
        if answer == "q":
            return None
        if answer == "r":
            return AGAIN
        if answer == "w":
            _write_report(session, unused(Path(REPORT_NAME)))
        elif answer.isdigit() and 1 <= int(answer) <= len(fixes):
            return fixes[int(answer) - 1]
        else:
            print("one of " + ", ".join([*map(str, range(1, len(fixes) + 1)), "r", "w", "q"]))


def _conclude(session: DebugSession, arguments: argparse.Namespace, code: int) -> int:
    """Write what was asked for: the report, and the files of a Plan that passed."""
    try:
        if arguments.report is not None:
            _write_report(session, arguments.report, overwrite=arguments.overwrite)
        out = arguments.out
        if out is None and code == 0 and len(session.attempts) > 1 and _interactive(arguments):
            answer = input("Folder for the files of this Plan (empty: none) > ").strip()
            out = Path(answer).expanduser() if answer else None
        if out is not None and code == 0:
            from generators import render, write

            for path in write(render(session.plan), out, overwrite=arguments.overwrite):
                print(f"verl-wizard: wrote {path}", file=sys.stderr)
    except EOFError:
        return code
    except FileExists as error:
        return fail(f"{error} (--overwrite)")
    except OSError as error:
        return fail(reason(error))
    return code


def _write_report(session: DebugSession, path: Path, *, overwrite: bool = False) -> None:
    from wizard.probe.doctor_text import ask_doctor

    print("verl-wizard: asking the interpreter for its versions", file=sys.stderr)
    text = report_text(session.attempts, ask_doctor(session.plan.target.python))
    write_atomic(path, text, overwrite=overwrite, keep_previous=True)
    print(f"verl-wizard: wrote {path}", file=sys.stderr)


class _Table:
    """Tells people."""

    def attempt(self, number: int, attempt: Attempt, before: Plan | None) -> None:
        """Say what this climb changes, and the table's head."""
        if attempt.fix is not None and before is not None:
            print(f"\nAttempt {number}: {printable(attempt.fix.label)}")
            for line in change_lines(before, attempt.plan):
                print(f"  {line}")
        print(_columns(HEAD))

    def started(self, name: str) -> None:
        """Say what is running, to a person who waits."""
        if sys.stderr.isatty():
            print(f"{name} …", end="\r", file=sys.stderr, flush=True)

    def rung(self, result: RungResult) -> None:
        """Print a rung's line."""
        print(_columns(cells(result)), flush=True)

    def diagnosis(self, found: Diagnosis) -> None:
        """Print why it failed."""
        print(f"\n{scrub(diagnosis_text(found))}")


def _columns(values: tuple[str, ...]) -> str:
    *narrow, last = values
    return "  ".join([*(f"{value:{width}}" for value, width in zip(narrow, WIDTHS, strict=True)), printable(last)])


class _JsonLines:
    """Tells programs: one object a line."""

    def attempt(self, number: int, attempt: Attempt, before: Plan | None) -> None:
        """Print what this climb changes."""
        changes = [] if attempt.fix is None else [msgspec.to_builtins(change) for change in attempt.fix.changes]
        self._print({"kind": "attempt", "attempt": number, "changes": changes})

    def started(self, name: str) -> None:
        """Say nothing: the line comes when the rung is done."""

    def rung(self, result: RungResult) -> None:
        """Print how a rung went."""
        observed = result.observed
        self._print(
            {
                "kind": "rung",
                "rung": result.rung.name,
                "outcome": result.outcome,
                "why": result.why,
                "kept": result.kept,
                "seconds": round(result.seconds, 3),
                "peak_bytes": observed.peak_bytes,
                "metrics": observed.metrics,
                "folder": str(result.folder) if result.folder else None,
            }
        )

    def diagnosis(self, found: Diagnosis) -> None:
        """Print why it failed."""
        self._print({"kind": "diagnosis", **msgspec.to_builtins(found)})

    def _print(self, data: dict[str, Any]) -> None:
        # msgspec writes NaN as null; Python's own json would write what JSON does not have.
        print(msgspec.json.encode(data).decode(), flush=True)
