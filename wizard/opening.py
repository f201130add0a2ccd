"""Which answers a sitting opens with. No UI."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from wizard.plan import Plan
from wizard.plan_file import FILE_NAME, load_plan
from wizard.text import printable


@dataclass(frozen=True)
class Resume:
    """Answers of an earlier sitting, offered at the start."""

    plan: Plan
    question: str


def opening(file: Path | None, resume: bool) -> tuple[Plan, Path, Resume | None]:
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
    from wizard.probe.machine import machine_text

    plan = load_plan(own)
    when = time.strftime("%d %B %H:%M", time.localtime(own.stat().st_mtime))
    machine = machine_text(plan.machine) if plan.machine.gpus_per_node else "the CPU"
    question = f"This folder holds answers of {when}: {printable(plan.model.id)} on {machine}, {plan.algorithm.name}."
    return Resume(plan, f"{question}\nStarting anew puts them aside.")


@dataclass(frozen=True)
class GoingOn:
    """A validation that another program of this person runs now, offered at the start."""

    folder: Path
    question: str


def going_on() -> GoingOn | None:
    """Return the newest validation that goes on, None without one."""
    from wizard.validation.run_folder import SPEC, NoRun, read_spec_of, run_going_on

    folder = run_going_on()
    if folder is None:
        return None
    try:
        spec = read_spec_of(folder)
        since = time.strftime("%H:%M", time.localtime((folder / SPEC).stat().st_mtime))
    except (NoRun, OSError):
        return None
    model = printable(spec.model.rstrip("/").rpartition("/")[2] or "a model of its config")
    return GoingOn(
        folder,
        f"A validation is going on since {since}: {model}, {spec.world_size} ranks on {spec.device}, started by "
        f"another wizard or command ({folder}). Watch it? It goes on when you leave; it can be ended from there too.",
    )
