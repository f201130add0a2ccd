"""Keys that people set in a file: every binding has an id, takes another key, and no wrong entry keeps the wizard shut."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from screen_driver import drawn, standing, to_step, until
from textual.binding import Binding
from textual.dom import DOMNode
from textual.widgets import Input

import screens
from screens.app import WizardApp
from screens.keymap import UserKeys, read_keys
from screens.widgets.dialogs import Help
from wizard.plan import Plan

SIZE = (80, 24)


def ours(base: type[DOMNode] = DOMNode) -> Iterator[type[DOMNode]]:
    """Every class below one that the screens define."""
    for one in base.__subclasses__():
        if one.__module__.startswith("screens."):
            yield one
        yield from ours(one)


def file_of(folder: Path, text: str) -> Path:
    path = folder / "keys.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def app_with(folder: Path, text: str) -> WizardApp:
    return WizardApp(Plan(), folder / "verl-wizard.yaml", keys=read_keys(file_of(folder, text)))


def test_every_binding_has_an_id_of_its_own_and_is_listed() -> None:
    for module in pkgutil.walk_packages(screens.__path__, "screens."):
        importlib.import_module(module.name)
    found = [binding for one in set(ours()) for binding in vars(one).get("BINDINGS", ())]
    assert len(found) > 40
    assert [one for one in found if not isinstance(one, Binding) or not one.id or not one.description] == []
    names = [one.id for one in found]
    assert sorted(set(names)) == sorted(names)
    done = subprocess.run([sys.executable, "-m", "wizard", "keys"], capture_output=True, text=True, check=True)
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == set(names)


async def test_what_textual_adds_has_an_id_too(app: WizardApp) -> None:
    async with app.run_test(size=SIZE):
        assert [binding for _, binding in app._bindings if not binding.id] == []


async def test_other_keys_work_and_are_shown(tmp_path: Path) -> None:
    app = app_with(tmp_path, "next: f10,ctrl+n\nback: f3\nfit-batches: f11\nclose-help: k\n")
    assert app.user_keys.problems == ()
    async with app.run_test(size=SIZE) as pilot:
        await standing(pilot, "environment")
        assert "F10 Next" in drawn(pilot)
        await pilot.press("f10")
        await standing(pilot, "gpus")
        await pilot.press("ctrl+n")
        await standing(pilot, "model")
        await pilot.press("f3")
        await standing(pilot, "gpus")
        await to_step(pilot, "batches")
        assert "F11 chooses all of these anew" in drawn(pilot)
        assert "F11 Fit" in drawn(pilot)
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, Help))
        await pilot.press("end")
        await until(pilot, lambda: "F10/ctrl+n/n next" in " ".join(drawn(pilot).split()))
        assert "k closes this" in drawn(pilot)
        await pilot.press("escape")
        assert isinstance(app.screen, Help)
        await pilot.press("k")
        await standing(pilot, "batches")


async def test_two_keys_change_places(tmp_path: Path) -> None:
    app = app_with(tmp_path, "next: f2\nback: f3\n")
    async with app.run_test(size=SIZE) as pilot:
        await standing(pilot, "environment")
        await pilot.press("f2")
        await standing(pilot, "gpus")
        await pilot.press("f3")
        await standing(pilot, "environment")


async def test_a_letter_is_still_typed_in_a_field(tmp_path: Path) -> None:
    app = app_with(tmp_path, "probe-again: k\nfix-letter: m\n")
    assert app.user_keys.problems == ()
    async with app.run_test(size=SIZE) as pilot:
        await standing(pilot, "environment")
        field = app.screen.query_one("#field-target-python Input", Input)
        field.focus()
        await pilot.press("k", "m")
        assert field.value == "km"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nxet: f10", ["nxet: f10", "no binding has this id", "'next'"]),
        ("next: F10", ["next: F10", "'F10' is not a key", "'f10'"]),
        ("next: pgdown", ["'pgdown' is not a key", "pagedown"]),
        ("next: ctlr+n", ["'ctlr+n' is not a key", "'ctrl+n'"]),
        ("next:", ["next", "no key is given"]),
        ("next: {a: 1}", ["next", "is not a key"]),
        ("next: k", ["next: k", "'k' could no longer be used in fields"]),
        ("next: enter", ["'enter' could no longer be used in fields"]),
        ("next: f2", ["next: f2", "F2 is back's"]),
        ("undo: f10\nredo: f10", ["F10", "undo", "redo"]),
        ("validate-pause: u", ["validate-pause: u", "u is undo-letter's", "Validate"]),
        ('"a\\e[2Jb": f10', ["no binding has this id"]),
        ("- f10", ["not a list of"]),
        ("next: [f1", ["keys.yaml:", "No key is changed"]),
    ],
)
def test_a_wrong_entry_is_left_out_and_said(tmp_path: Path, text: str, said: list[str]) -> None:
    path = file_of(tmp_path, text)
    found = read_keys(path)
    assert len(found.problems) == 1
    assert [part for part in [str(path), *said] if part not in found.problems[0]] == []
    assert found.problems[0].isprintable()
    assert "next" not in found.keys


def test_the_example_in_the_documentation_holds(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "terminal.md").read_text(encoding="utf-8")
    found = read_keys(file_of(tmp_path, text.split("```yaml\n")[1].split("```")[0]))
    assert found.problems == ()
    assert found.keys["next"] == "f10,ctrl+n"


def test_keys_that_only_other_screens_use_are_free(tmp_path: Path) -> None:
    found = read_keys(file_of(tmp_path, "debug-cancel: f7\nanswer-yes: u\nvalidate-start: f11\n"))
    assert found == UserKeys({"debug-cancel": "f7", "answer-yes": "u", "validate-start": "f11"})


async def test_a_wrong_entry_is_shown_and_the_others_hold(tmp_path: Path) -> None:
    app = app_with(tmp_path, "nxet: f11\nnext: f10\n")
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await standing(pilot, "environment")
        await until(pilot, lambda: "'next'" in drawn(pilot))
        await pilot.press("f10")
        await standing(pilot, "gpus")


def test_the_file_is_found_where_xdg_says(tmp_path: Path) -> None:
    (tmp_path / "verl-wizard").mkdir()
    path = file_of(tmp_path / "verl-wizard", "next: f10\nnxet: f11\n")
    done = subprocess.run(
        [sys.executable, "-m", "wizard", "keys"], capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert ["next", "f10"] in [line.split()[:2] for line in done.stdout.splitlines()]
    assert f"verl-wizard: {path}: nxet: f11: no binding has this id, did you mean 'next'?" in done.stderr
