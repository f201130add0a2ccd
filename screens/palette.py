"""What the command palette finds besides Textual's own commands: steps, fields, and what has no key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from screens.steps import STEPS
from wizard.plan import spec_of
from wizard.steps import label_of

if TYPE_CHECKING:
    from screens.app import WizardApp


def commands(app: WizardApp) -> Iterator[SystemCommand]:
    """Yield the wizard's commands."""
    for number, step in enumerate(STEPS, 1):
        yield SystemCommand(f"{number}. {step.title}", "Go to this step", lambda step_id=step.id: app.go(step_id))
    yield SystemCommand("Undo", "Take the last change back", app.action_undo)
    yield SystemCommand("Redo", "Make it again", app.action_redo)
    yield SystemCommand(
        "Fit to model and machine", "Choose batches, rollout, attention and offload anew", app.action_fit
    )
    yield SystemCommand("Compare with another Plan", "Show which answers differ", app.action_compare)
    for step in STEPS:
        for path in step.fields:
            # Searched, not listed: there are some fifty.
            yield SystemCommand(
                f"{label_of(path)} ({path})",
                f"{step.title}: {spec_of(path).help}",
                lambda step_id=step.id, path=path: app.go(step_id, path),
                discover=False,
            )
