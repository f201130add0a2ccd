"""Terminals of any size, changed at any time: all is reached by Tab and scrolling, and the focus stays."""

from __future__ import annotations

from typing import Any

from screen_driver import drawn, standing, to_step, until
from screen_scenes import fixed_host, starter
from textual.pilot import Pilot
from textual.widget import Widget

from screens.app import WizardApp
from screens.base import StepScreen
from screens.steps import STEPS


async def reach(pilot: Pilot[Any], screen: StepScreen, widget: Widget) -> None:
    screen.set_focus(widget)
    seconds, what = 10, f"{screen.step_id}: {widget} in sight"
    await until(pilot, lambda: screen.find_widget(widget).visible_region.area > 0, seconds, what)


async def test_any_size_at_any_time(app: WizardApp) -> None:
    app.session.begin(starter())
    with fixed_host():
        async with app.run_test(size=(80, 24)) as pilot:
            await standing(pilot, "environment")
            for step in STEPS:
                screen = await to_step(pilot, step.id)
                await pilot.resize_terminal(60, 18)
                await until(pilot, lambda: "Made for 80×24" in drawn(pilot))
                chain = screen.focus_chain
                # Between the first and the last one, rows of a form are alike.
                for widget in (one for one in chain if one.id or one is chain[0]):
                    await reach(pilot, screen, widget)
                screen.set_focus(None)
                await pilot.press("end")
                body = screen.query_one("#body")
                await until(pilot, lambda body=body: body.scroll_offset.y == body.max_scroll_y)  # type: ignore[misc]
                screen.set_focus(chain[-1])
                for size in ((1, 1), (80, 24)):
                    await pilot.resize_terminal(*size)
                    await pilot.pause()
                    assert app.focused is chain[-1]
                assert f"{screen.step_index + 1}/10 {step.title}" in drawn(pilot)
                assert "Made for" not in drawn(pilot)
