"""The first lines of every generated file."""

from __future__ import annotations

from wizard import __version__
from wizard.plan import Plan
from wizard.text import printable


def heading(plan: Plan, purpose: str) -> str:
    """Return a comment of one line that says what made the file, for which verl, and what it is for."""
    # The version may have been typed: a line break in it would end the comment, and a script would run the rest.
    return f"# verl-wizard {__version__} for verl {printable(plan.target.verl_version)}: {purpose}.\n"
