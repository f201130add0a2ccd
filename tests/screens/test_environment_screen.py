"""The environment step against real interpreters and things that are none."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from textual.pilot import Pilot
from textual.widgets import Button, DataTable, Input, Static

from screens.app import WizardApp
from screens.environment import WAITING, EnvironmentScreen
from wizard.plan import Plan, Target
from wizard.probe.versions import ORDER

SECONDS = 40


async def until(pilot: Pilot[Any], true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert pilot.app.is_running, "the application ended"
        assert time.monotonic() < deadline, "did not happen in time"
        await pilot.pause(0.02)


async def environment_step(pilot: Pilot[Any]) -> EnvironmentScreen:
    await until(pilot, lambda: isinstance(pilot.app.screen, EnvironmentScreen))
    screen = pilot.app.screen
    assert isinstance(screen, EnvironmentScreen)
    await pilot.pause()
    return screen


def cells(screen: EnvironmentScreen) -> dict[str, list[str]]:
    table = screen.query_one(DataTable)
    return {name: [str(cell) for cell in table.get_row(name)] for name in ORDER}


def done(screen: EnvironmentScreen) -> bool:
    return all(row[2] != WAITING for row in cells(screen).values())


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def app_for(tmp_path: Path, verl_version: str = "0.9.1", python: str = "") -> WizardApp:
    return WizardApp(Plan(target=Target(verl_version=verl_version)), tmp_path / "verl-wizard.yaml", python)


async def test_rows_fill_in_and_the_highlighted_one_is_told_in_full(tmp_path: Path) -> None:
    async with app_for(tmp_path).run_test(size=(80, 24)) as pilot:
        screen = await environment_step(pilot)
        await until(pilot, lambda: done(screen))
        rows = cells(screen)
        assert rows["transformers"][1:3] == [importlib.metadata.version("transformers"), "OK"]
        assert screen.query_one(DataTable).virtual_size.width <= 80
        await pilot.press(*["down"] * ORDER.index("vllm"))
        if rows["vllm"][2] == "WARN":
            detail = str(screen.query_one("#detail", Static).content)
            assert "pip install" in detail
            await pilot.press("enter")
            assert pilot.app.clipboard == detail.splitlines()[-1]


async def test_an_absent_interpreter_is_a_row(tmp_path: Path) -> None:
    async with app_for(tmp_path, python="/nonexistent/[red]python").run_test(size=(80, 24)) as pilot:
        screen = await environment_step(pilot)
        await until(pilot, lambda: done(screen))
        assert pilot.app.plan.target.python == "/nonexistent/[red]python"
        assert cells(screen)["python"][2:] == [
            "FAIL",
            "/nonexistent/[red]python cannot be started: No such file or directory",
        ]
        assert {row[2] for name, row in cells(screen).items() if name != "python"} == {"WARN"}


async def test_another_interpreter_is_asked_on_enter(tmp_path: Path) -> None:
    async with app_for(tmp_path, python="/nonexistent/python").run_test(size=(80, 24)) as pilot:
        screen = await environment_step(pilot)
        await until(pilot, lambda: done(screen))
        field = screen.query_one("#field-target-python Input", Input)
        field.focus()
        field.value = script(tmp_path / "python", "echo nothing useful; exit 4")
        await pilot.press("enter")
        await until(pilot, lambda: "exit code 4" in cells(screen)["python"][3])


async def test_leaving_ends_a_target_that_hangs(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    python = script(tmp_path / "python", f"case $2 in wizard.probe*) echo $$ > {pid};; esac; exec sleep 1000")
    app = app_for(tmp_path, python=python)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await environment_step(pilot)
        await until(pilot, lambda: pid.exists() and pid.read_text().strip() != "")
        assert not done(screen)
        number = int(pid.read_text())
    deadline = time.monotonic() + SECONDS
    while psutil.pid_exists(number):
        assert time.monotonic() < deadline, f"process {number} outlived the screen"
        threading.Event().wait(0.02)


@pytest.mark.verl
async def test_files_can_follow_the_verl_that_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("verl", reason="needs verl in this interpreter")
    async with app_for(tmp_path, verl_version="0.7.1").run_test(size=(80, 24)) as pilot:
        screen = await environment_step(pilot)
        button = screen.query_one("#follow", Button)
        await until(pilot, lambda: button.has_class("offered"))
        button.press()
        await until(pilot, lambda: pilot.app.plan.target.verl_version == "0.9.1")
        await until(pilot, lambda: not button.has_class("offered"))


async def test_the_screen_keeps_its_rows_when_the_plan_changes(tmp_path: Path) -> None:
    async with app_for(tmp_path, python="/nonexistent/python").run_test(size=(80, 24)) as pilot:
        screen = await environment_step(pilot)
        await until(pilot, lambda: done(screen))
        before = cells(screen)
        plan = pilot.app.plan
        pilot.app.set_plan(dataclasses.replace(plan, data=dataclasses.replace(plan.data, max_prompt_length=77)))
        await pilot.pause()
        assert cells(screen) == before
