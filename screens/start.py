"""Where the terminal interface begins, and the exit code it leaves with."""

from __future__ import annotations

import sys
from pathlib import Path

from textual.theme import BUILTIN_THEMES

from screens.app import WizardApp
from screens.keymap import read_keys
from wizard.commands.options import fail
from wizard.opening import going_on, opening
from wizard.plan import PlanError


def run_app(file: Path | None, *, resume: bool, python: str, ascii_only: bool, mouse: bool, theme: str) -> int:
    """Open the wizard; returns the exit code.

    Raises:
        Exception: what ended the application; the answers are saved.
    """
    if theme and theme not in BUILTIN_THEMES:
        names = ", ".join(sorted(BUILTIN_THEMES))
        return fail(f"--theme {theme}: there is no such theme. One of: {names}.", 2)
    try:
        plan, path, offer = opening(file, resume)
    except (PlanError, OSError) as error:
        print(f"verl-wizard: {error}", file=sys.stderr)
        return 2
    keys = read_keys()
    for problem in keys.problems:
        print(f"verl-wizard: {problem}", file=sys.stderr)
    app = WizardApp(
        plan, path, python, ascii_only=ascii_only, offer=offer, going_on=going_on(), keys=keys, theme=theme
    )
    code = app.run(mouse=mouse)
    if app.failure is not None:
        raise app.failure
    print(f"verl-wizard: answers are in {path}", file=sys.stderr)
    return 0 if code is None else code
