"""The first lines of every generated file."""

from __future__ import annotations

from wizard import __version__
from wizard.plan import Plan


def heading(plan: Plan, purpose: str) -> str:
    """Return a comment of one line that says what made the file, for which verl, and what it is for."""
    return f"# verl-wizard {__version__} for verl {plan.target.verl_version}: {purpose}.\n"
