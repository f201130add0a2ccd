"""The debugging ladder from the screen: a wrong class fails, one key mends it, and the Plan passes every rung."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from screen_driver import drawn, said, to_step, until
from textual.widgets import Input

from screens.app import WizardApp
from screens.debug import DebugScreen
from screens.validate import ValidateScreen
from screens.widgets.dialogs import Ask
from wizard.model.catalog import preset
from wizard.model.tiny import ensure_tiny
from wizard.plan import Fsdp, Plan

CLIMB_SECONDS = 240


@pytest.mark.timeout(600)
async def test_a_wrong_class_is_mended_by_one_key(app: WizardApp) -> None:
    ensure_tiny()
    plan = Plan(architecture=preset("tiny"))
    app.session.begin(dataclasses.replace(plan, actor=Fsdp(strategy="fsdp2", wrap_classes=("qwen2decoderlayer",))))
    async with app.run_test(size=(80, 24)) as pilot:
        validate = await to_step(pilot, "validate")
        assert isinstance(validate, ValidateScreen)
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, DebugScreen))
        screen = app.screen
        assert isinstance(screen, DebugScreen)
        await until(pilot, lambda: screen._session.attempt.diagnosis is not None and not screen.running, CLIMB_SECONDS)
        assert "F4/x" in said(pilot, "#state")
        assert "qwen2decoderlayer" in said(pilot, "#why")
        await pilot.press("x")
        assert app.plan.actor.wrap_classes != ("qwen2decoderlayer",)
        assert screen.running
        await until(pilot, lambda: not screen.running, CLIMB_SECONDS)
        assert said(pilot, "#state").startswith("The Plan passed every rung"), said(pilot, "#state") + drawn(pilot)
        await until(pilot, lambda: "as planned" in drawn(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is validate)


async def test_leaving_a_climb_ends_its_run(app: WizardApp) -> None:
    ensure_tiny()
    app.session.begin(Plan(architecture=preset("tiny")))
    async with app.run_test(size=(80, 24)) as pilot:
        await to_step(pilot, "validate")
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, DebugScreen))
        screen = app.screen
        assert isinstance(screen, DebugScreen)
        await until(pilot, lambda: screen._session._run is not None)
        run = screen._session._run
        assert run is not None
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not screen)
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.screen, ValidateScreen))
        await until(pilot, lambda: not screen.running)
        await until(pilot, lambda: run._process.returncode is not None)


async def test_a_log_is_read_and_its_fix_applied(app: WizardApp, tmp_path: Path) -> None:
    """The message is verl's own (0.9.1 `workers/config/actor.py`), as two Ray workers print it."""
    log = tmp_path / "my train.log"
    line = "AssertionError: When using sequence parallelism for actor/ref policy, you must enable `use_remove_padding`."
    log.write_text(f"(TaskRunner pid=7) starting\n(WorkerDict pid=8) {line}\n")
    plan = dataclasses.replace(Plan(architecture=preset("tiny")), actor=Fsdp(ulysses_size=2))
    app.session.begin(plan.replace("model.use_remove_padding", False))
    async with app.run_test(size=(80, 24)) as pilot:
        await to_step(pilot, "validate")
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        app.screen.query_one(Input).value = str(tmp_path / "none.log")
        await pilot.press("enter")
        await until(pilot, lambda: "No such file" in said(pilot, "#verdict"))
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, Ask))
        app.screen.query_one(Input).value = str(log)
        await pilot.press("enter")
        await until(pilot, lambda: "remove padding" in said(pilot, "#diagnosis"))
        await pilot.press("f4")
        assert app.plan.model.use_remove_padding
