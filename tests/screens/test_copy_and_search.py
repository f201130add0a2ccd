"""What is copied and where it is said to be; what search finds; that every step and field has help."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from screen_driver import drawn, standing, to_step, until
from screen_scenes import fixed_host, starter
from terminal import Terminal
from textual.command import CommandPalette
from textual.widgets import OptionList, SelectionList, Static

from generators import render
from screens.app import WizardApp
from screens.steps import STEPS, make_screen
from screens.widgets.dialogs import Help
from screens.widgets.fields import FieldRow
from wizard.field_help import field_help
from wizard.plan import spec_of
from wizard.state import state_folder
from wizard.verl.keys import exported_keys

SIZE = (80, 24)


def copied() -> str:
    return (state_folder() / "copied.txt").read_text(encoding="utf-8")


async def test_each_step_copies_what_it_is_about(app: WizardApp) -> None:
    app.session.begin(starter())
    with fixed_host():
        async with app.run_test(size=SIZE) as pilot:
            screen = await standing(pilot, "environment")
            await until(pilot, lambda: "peft" in drawn(pilot) and "LoRA" in drawn(pilot))
            await pilot.press(*["down"] * 7, "y")
            assert app.clipboard.endswith("flash-attn==2.8.3")
            assert copied() == f"{app.clipboard}\n"
            said = [notice.message for notice in app._notifications]
            assert any("OSC 52" in text and str(state_folder() / "copied.txt") in text for text in said)
            app.edit("actor.reduce_dtype", "bf16")
            screen = await to_step(pilot, "precision")
            await until(pilot, lambda: screen.first_fix is not None)
            await pilot.press("f12")
            assert app.clipboard.startswith("actor.reduce_dtype: ")
            assert "actor.reduce_dtype=fp32" in app.clipboard.splitlines()
            await to_step(pilot, "review")
            await pilot.press("f12")
            assert app.clipboard == render(app.plan)["run.yaml"]
            assert (state_folder() / "copied.txt").stat().st_mode & 0o777 == 0o600


def test_the_terminal_is_sent_osc_52(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    try:
        terminal.until(b"1/10")
        terminal.until(b"LoRA")
        terminal.send(b"y")
        terminal.until(b"\x1b]52;c;")
        terminal.until(b"\x07")
    finally:
        terminal.close()
    sent = terminal.seen.split(b"\x1b]52;c;")[1].split(b"\x07")[0]
    assert base64.b64decode(sent).startswith(b"python ")


@pytest.mark.parametrize("key", ["ctrl+p", "slash"])
async def test_the_palette_finds_a_field_and_goes_there(app: WizardApp, key: str) -> None:
    app.session.begin(starter())
    with fixed_host():
        async with app.run_test(size=SIZE) as pilot:
            await standing(pilot, "environment")
            await pilot.press("escape", key)
            await until(pilot, lambda: isinstance(app.screen, CommandPalette))
            await pilot.press(*"ulysses_size")
            palette = app.screen.query_one(OptionList)
            await until(pilot, lambda: palette.option_count > 0 and "Sequence & batches" in drawn(pilot))
            await pilot.press("enter")
            screen = await standing(pilot, "batches")
            await until(pilot, lambda: app.focused is not None and app.focused.parent is not None)
            await until(pilot, lambda: screen.query_one("#field-actor-ulysses_size").has_focus_within)


async def test_typed_text_finds_a_layer_class(app: WizardApp) -> None:
    app.session.begin(starter())
    with fixed_host():
        async with app.run_test(size=SIZE) as pilot:
            screen = await to_step(pilot, "layer_classes")
            screen.set_focus(screen.query_one("#other"))
            await pilot.press(*"mlp")
            choices = screen.query_one("#classes", SelectionList)
            await until(pilot, lambda: choices.highlighted is not None)
            assert choices.get_option_at_index(choices.highlighted or 0).value == "Qwen2MLP"


async def test_the_focused_field_has_help_of_its_own(app: WizardApp) -> None:
    app.session.begin(starter())
    with fixed_host():
        async with app.run_test(size=SIZE) as pilot:
            screen = await to_step(pilot, "precision")
            row = screen.query(FieldRow).first()
            screen.focus_field(row.path)
            await until(pilot, lambda: row.has_focus_within)
            await pilot.press("f1")
            await until(pilot, lambda: isinstance(app.screen, Help))
            text = str(app.screen.query(Static).first().content)
            assert text.startswith(f"{row.path}\n{spec_of(row.path).help}")
            assert "Keys: F2/b back" in text


def test_every_step_has_help() -> None:
    assert [step.id for step in STEPS if not make_screen(step).guide] == []


def test_help_of_a_field_says_what_verl_makes_of_it() -> None:
    for entry in filter(lambda entry: entry.path, exported_keys()):
        text = field_help(entry.path, starter())
        assert spec_of(entry.path).help in text
        assert entry.key in text
