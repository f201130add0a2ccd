"""The cluster check from the screen: one key, a report of what the ranks measured, and back."""

from __future__ import annotations

import platform

import pytest
from screen_driver import drawn, said, to_step, until
from textual.widgets import Static

from screens.app import WizardApp
from screens.cluster import ClusterScreen
from screens.validate import ValidateScreen
from wizard.model.catalog import preset
from wizard.plan import Plan


@pytest.mark.timeout(200)
async def test_the_nodes_are_compared_from_the_screen(app: WizardApp) -> None:
    app.session.begin(Plan(architecture=preset("tiny")))
    async with app.run_test(size=(80, 24)) as pilot:
        await to_step(pilot, "validate")
        await pilot.press("k")
        await until(pilot, lambda: isinstance(app.screen, ClusterScreen))
        screen = app.screen
        assert isinstance(screen, ClusterScreen)
        await until(pilot, lambda: not screen.running, 120)
        assert said(pilot, "#state") == "Passed: every step ran on every rank."
        assert screen._check is not None
        measured = screen._check.report.measured
        assert measured is not None
        assert [step.rank for step in measured.steps] == [0, 1]
        await until(pilot, lambda: platform.python_version() in drawn(pilot))
        await pilot.press("end")
        await until(pilot, lambda: "0 errors" in drawn(pilot))
        assert screen.query_one("#found", Static).size.height > 24
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, ValidateScreen))
