"""The model step, driven by keys, with the real inspector."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from screens.app import WizardApp
from screens.model import ModelScreen
from screens.widgets.dialogs import Confirm
from wizard.model.catalog import preset
from wizard.plan import Fsdp, Plan

SECONDS = 60
CONFIG = {
    "model_type": "own",
    "architectures": ["Own"],
    "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"},
}
CODE = """
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
class OwnConfig(PretrainedConfig):
    model_type = "own"
class Own(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.body = nn.Linear(3, 5)
        self.post_init()
"""


async def until(pilot: Pilot[Any], true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        await pilot.pause(0.02)


async def model_step(pilot: Pilot[Any]) -> ModelScreen:
    pilot.app.go("model")
    await until(pilot, lambda: isinstance(pilot.app.screen, ModelScreen))
    await pilot.pause()
    screen = pilot.app.screen
    assert isinstance(screen, ModelScreen)
    return screen


async def type_model(pilot: Pilot[Any], screen: ModelScreen, text: str) -> None:
    field = screen.query_one("#model", Input)
    field.focus()
    field.value = text
    await pilot.press("enter")


def said(screen: ModelScreen, selector: str) -> str:
    return str(screen.query_one(selector, Static).content)


@pytest.fixture
def app(tmp_path: Path) -> WizardApp:
    return WizardApp(Plan(), tmp_path / "plan.yaml")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_builtin_model_is_known_at_once(app: WizardApp, size: tuple[int, int]) -> None:
    async with app.run_test(size=size) as pilot:
        screen = await model_step(pilot)
        await until(pilot, lambda: app.plan.architecture is not None)
        assert app.plan.architecture == preset("tiny")
        await until(pilot, lambda: "234,560" in said(screen, "#facts"))
        lines = said(screen, "#facts").count("\n") + 1
        await until(pilot, lambda: screen.query_one("#facts").region.height == lines)


async def test_a_preset_by_keys_alone(app: WizardApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await model_step(pilot)
        screen.query_one("#model", Input).value = ""
        await pilot.press(*"gemma", "space", *"27")
        await until(pilot, lambda: screen.query_one("#presets", OptionList).option_count == 1)
        await pilot.press("tab", "down", "enter")
        await until(pilot, lambda: app.plan.model.id == "google/gemma-3-27b-it")
        assert app.plan.architecture == preset("google/gemma-3-27b-it")
        assert screen.query_one("#model", Input).value == "google/gemma-3-27b-it"
        await until(pilot, lambda: "27,432,406,640" in said(screen, "#facts"))


async def test_classes_of_the_former_model_are_left_out_aloud(tmp_path: Path) -> None:
    app = WizardApp(Plan(actor=Fsdp(wrap_classes=("LlamaDecoderLayer",))), tmp_path / "plan.yaml")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await model_step(pilot)
        await until(pilot, lambda: app.plan.architecture is not None)
        assert app.plan.actor.wrap_classes == ()
        assert "LlamaDecoderLayer" in said(screen, "#state")


async def test_a_wrong_folder_is_said_and_nothing_typed_is_lost(app: WizardApp, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text('{"model_type": "qw')
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await model_step(pilot)
        await until(pilot, lambda: app.plan.architecture is not None)
        await type_model(pilot, screen, str(tmp_path / "bad"))
        await until(pilot, lambda: "config.json:1: not JSON" in said(screen, "#state"))
        assert screen.query_one("#model", Input).value == str(tmp_path / "bad")
        assert app.plan.model.id == "tiny"


async def test_foreign_code_asks_first(app: WizardApp, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "own.py").write_text(CODE)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await model_step(pilot)
        await until(pilot, lambda: app.plan.architecture is not None)
        await type_model(pilot, screen, str(folder))
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        question = " ".join(str(part.content) for part in app.screen.query(Static))
        assert "own.py" in question
        assert "own.Own" in question
        # Enter answers with the harmless button.
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is screen)
        assert app.plan.model.id == "tiny"
        await type_model(pilot, screen, str(folder))
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: app.plan.model.id == str(folder))
        assert app.plan.model.trust_remote_code
        assert app.plan.architecture is not None
        assert app.plan.architecture.parameters == 3 * 5 + 5
        # The field names the code that was agreed to; taking it again asks nothing, until the code is another one.
        agreed = f"{folder}@{app.plan.model.revision}"
        assert screen.query_one("#model", Input).value == agreed
        (folder / "own.py").write_text(CODE + "\n# changed\n")
        await type_model(pilot, screen, agreed)
        await until(pilot, lambda: isinstance(app.screen, Confirm))


async def test_a_critic_of_its_own_has_a_value_head(app: WizardApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await model_step(pilot)
        await until(pilot, lambda: app.plan.architecture is not None)
        field = screen.query_one("#critic", Input)
        field.focus()
        field.value = "Qwen/Qwen2.5-0.5B-Instruct"
        await pilot.press("enter")
        await until(pilot, lambda: app.plan.critic_architecture is not None)
        assert app.plan.model.critic_id == "Qwen/Qwen2.5-0.5B-Instruct"
        assert app.plan.critic_architecture is not None
        assert app.plan.critic_architecture.parameters == 494_032_768 + 896 + 1
        field.value = ""
        await pilot.press("enter")
        await until(pilot, lambda: app.plan.critic_architecture is None)
        assert app.plan.model.critic_id == ""


async def test_hostile_names_stay_text(app: WizardApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await model_step(pilot)
        await until(pilot, lambda: app.plan.architecture is not None)
        await type_model(pilot, screen, "/no/[bold]such\x1b[31m[/red]")
        await until(pilot, lambda: "no such folder" in said(screen, "#state"))
        assert "\x1b" not in said(screen, "#state")
        assert "[bold]such" in said(screen, "#state")


async def test_another_interpreter_answers_from_then_on(tmp_path: Path) -> None:
    """The one in the Plan is asked at each moment, whoever was asked before."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    app = WizardApp(Plan(), tmp_path / "verl-wizard.yaml")
    async with app.run_test(size=(80, 24)) as pilot:
        await app.inspector.warm()
        app.edit("target.python", "/nonexistent/python")
        screen = await model_step(pilot)
        await type_model(pilot, screen, str(tmp_path))
        await until(pilot, lambda: "/nonexistent/python" in said(screen, "#state"))
        app.edit("target.python", "")
        await type_model(pilot, screen, str(tmp_path))
        await until(pilot, lambda: app.plan.model.id == str(tmp_path))
        assert app.plan.architecture is not None
