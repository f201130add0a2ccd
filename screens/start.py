"""Where the terminal interface begins, and the exit code it leaves with."""

from __future__ import annotations

import sys
from pathlib import Path

from screens.app import WizardApp
from screens.keymap import read_keys
from wizard.opening import opening
from wizard.plan import PlanError


def run_app(file: Path | None, *, resume: bool, python: str, ascii_only: bool, mouse: bool) -> int:
    """Open the wizard; returns the exit code."""
    try:
        plan, path, offer = opening(file, resume)
    except (PlanError, OSError) as error:
        print(f"verl-wizard: {error}", file=sys.stderr)
        return 2
    keys = read_keys()
    for problem in keys.problems:
        print(f"verl-wizard: {problem}", file=sys.stderr)
    code = WizardApp(plan, path, python, ascii_only=ascii_only, offer=offer, keys=keys).run(mouse=mouse)
    print(f"verl-wizard: answers are in {path}", file=sys.stderr)
    return 0 if code is None else code
