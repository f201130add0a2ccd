"""Where the terminal interface begins: which answers it opens with, and the exit code it leaves with."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from screens.app import Resume, WizardApp
from wizard.plan import Plan, PlanError
from wizard.plan_file import FILE_NAME, load_plan
from wizard.probe.machine import machine_text
from wizard.session import run_going_on
from wizard.text import printable


def run_app(file: Path | None, *, resume: bool, python: str, ascii_only: bool, mouse: bool) -> int:
    """Open the wizard; returns the exit code."""
    try:
        plan, path, offer = _start(file, resume)
    except (PlanError, OSError) as error:
        print(f"verl-wizard: {error}", file=sys.stderr)
        return 2
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        print(
            "verl-wizard: this is no terminal. Scripts use `verl-wizard generate --model … --gpus … --out DIR` "
            "(see --help).",
            file=sys.stderr,
        )
        return 2
    code = WizardApp(plan, path, python, ascii_only=ascii_only, offer=offer).run(mouse=mouse)
    print(f"verl-wizard: answers are in {path}", file=sys.stderr)
    return 0 if code is None else code


def _start(file: Path | None, resume: bool) -> tuple[Plan, Path, Resume | None]:
    """Return the Plan to begin with, the file it is saved to, and what to offer first.

    Raises:
        PlanError: the file is neither a Plan nor a verl configuration.
        OSError: it cannot be read.
    """
    own = Path(FILE_NAME)
    if file is None:
        if resume:
            return load_plan(own), own, None
        return Plan(), own, _earlier(own)
    if file.is_dir():
        return load_plan(file / FILE_NAME), file / FILE_NAME, None
    from wizard.verl.importer import plan_from_file

    return *plan_from_file(file), None


def _earlier(own: Path) -> Resume | None:
    """Return the answers this folder holds, and what is known of their sitting.

    Raises:
        PlanError: the file is there, but is no Plan.
    """
    if not own.exists():
        return None
    plan = load_plan(own)
    when = time.strftime("%d %B %H:%M", time.localtime(own.stat().st_mtime))
    machine = machine_text(plan.machine) if plan.machine.gpus_per_node else "the CPU"
    question = f"This folder holds answers of {when}: {printable(plan.model.id)} on {machine}, {plan.algorithm.name}."
    going_on = run_going_on()
    if going_on is not None:
        question += f"\nA validation is still going on in another window; its log is {going_on / 'log.txt'}."
    return Resume(plan, f"{question}\nStarting anew puts them aside.")
