"""What the tests of the screens share: waiting with a deadline, typing, reading what is drawn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Static

from screens.app import WizardApp
from screens.base import StepScreen
from screens.steps import STEPS

SECONDS = 60


async def until(pilot: Pilot[Any], true: Callable[[], bool], seconds: float = SECONDS, what: str = "it") -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s:\n{drawn(pilot)}"
        await pilot.pause(0.02)


async def next_step(pilot: Pilot[Any], key: str = "f3") -> StepScreen:
    """Press the key that goes on, and wait until the next step stands."""
    screen = pilot.app.screen
    assert isinstance(screen, StepScreen)
    index = screen.step_index + (1 if key in ("f3", "n") else -1)
    await pilot.press(key)
    return await standing(pilot, STEPS[index].id)


async def standing(pilot: Pilot[Any], step_id: str) -> StepScreen:
    def there() -> bool:
        screen = pilot.app.screen
        return isinstance(screen, StepScreen) and screen.step_id == step_id and screen.is_mounted

    await until(pilot, there)
    await pilot.pause()
    screen = pilot.app.screen
    assert isinstance(screen, StepScreen)
    return screen


async def to_step(pilot: Pilot[Any], step_id: str) -> StepScreen:
    """Go to a step by the application's own call, where the way there is not what is tested."""
    app = pilot.app
    assert isinstance(app, WizardApp)
    app.go(step_id)
    return await standing(pilot, step_id)


async def type_text(pilot: Pilot[Any], text: str) -> None:
    await pilot.press(*text)


async def tab_to(pilot: Pilot[Any], selector: str) -> None:
    """Reach a widget with Tab alone; fails when a round does not come by it."""
    wanted = pilot.app.screen.query_one(selector)
    for _ in range(60):
        if pilot.app.focused is not None and wanted in pilot.app.focused.ancestors_with_self:
            return
        await pilot.press("tab")
    raise AssertionError(f"Tab does not reach {selector}")


def said(pilot: Pilot[Any], selector: str) -> str:
    return str(pilot.app.screen.query_one(selector, Static).content)


def drawn(pilot: Pilot[Any]) -> str:
    """Return the characters that the terminal shows."""
    lines = pilot.app.screen._compositor.render_strips()
    return "\n".join(line.text.rstrip() for line in lines)
