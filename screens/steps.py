"""Each step's screen; imported when it is first shown."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from wizard.steps import STEPS, Step

if TYPE_CHECKING:
    from screens.base import StepScreen

__all__ = ["STEPS", "make_screen"]


def make_screen(step: Step) -> StepScreen:
    """Return a new screen of this step: `LayerClassesScreen` of `screens.layer_classes` for `layer_classes`."""
    name = "".join(part.capitalize() for part in step.id.split("_")) + "Screen"
    screen: StepScreen = getattr(importlib.import_module(f"screens.{step.id}"), name)()
    return screen
