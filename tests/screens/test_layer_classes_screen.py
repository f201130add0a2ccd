"""The layer class step, driven by keys."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, SelectionList, Static

from screens.app import WizardApp
from screens.layer_classes import LayerClassesScreen
from wizard.facts import Architecture, LayerClass
from wizard.model.catalog import preset
from wizard.plan import Fsdp, Plan

SECONDS = 20


async def until(pilot: Pilot[Any], true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        await pilot.pause(0.02)


async def step(pilot: Pilot[Any]) -> LayerClassesScreen:
    pilot.app.go("layer_classes")
    await until(pilot, lambda: isinstance(pilot.app.screen, LayerClassesScreen))
    await pilot.pause()
    screen = pilot.app.screen
    assert isinstance(screen, LayerClassesScreen)
    return screen


def said(screen: LayerClassesScreen, selector: str) -> str:
    return str(screen.query_one(selector, Static).content)


def units(screen: LayerClassesScreen) -> list[list[str]]:
    table = screen.query_one("#units", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def ticked(screen: LayerClassesScreen) -> set[str]:
    return set(screen.query_one("#classes", SelectionList).selected)


def known(model: str = "Qwen/Qwen2.5-7B-Instruct") -> Architecture:
    found = preset(model)
    assert found is not None
    return found


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., WizardApp]:
    def made(architecture: Architecture | None = None, actor: Fsdp | None = None) -> WizardApp:
        plan = dataclasses.replace(Plan(), architecture=architecture or known(), actor=actor or Fsdp())
        return WizardApp(plan, tmp_path / "plan.yaml")

    return made


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_preselection_and_units(make: Callable[..., WizardApp], size: tuple[int, int]) -> None:
    app = make()
    async with app.run_test(size=size) as pilot:
        screen = await step(pilot)
        assert ticked(screen) == {"Qwen2DecoderLayer"}
        assert app.plan.actor.wrap_classes == ()
        assert ["Qwen2DecoderLayer", "28", "233M", "0.43 GiB", "model.layers.0"] in units(screen)
        assert "31 units" in said(screen, "#outcome")


async def test_ticking_a_part_shows_that_verl_stops(make: Callable[..., WizardApp]) -> None:
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await step(pilot)
        choices = screen.query_one("#classes", SelectionList)
        choices.focus()
        choices.highlighted = screen._listed.index("Qwen2MLP")
        await pilot.press("space")
        await until(pilot, lambda: app.plan.actor.wrap_classes == ("Qwen2DecoderLayer", "Qwen2MLP"))
        await until(pilot, lambda: "Leave out Qwen2MLP" in said(screen, "#outcome"))
        assert units(screen) == []
        await pilot.press("space")
        await until(pilot, lambda: app.plan.actor.wrap_classes == ())
        await until(pilot, lambda: "31 units" in said(screen, "#outcome"))


async def test_nothing_ticked_is_explained(make: Callable[..., WizardApp]) -> None:
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await step(pilot)
        choices = screen.query_one("#classes", SelectionList)
        choices.focus()
        choices.highlighted = 0
        await pilot.press("space")
        await until(pilot, lambda: any("Nothing ticked" in note.message for note in app._notifications))
        assert ticked(screen) == {"Qwen2DecoderLayer"}


async def test_a_typed_name_is_kept_and_its_consequence_shown(make: Callable[..., WizardApp]) -> None:
    app = make()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await step(pilot)
        field = screen.query_one("#other", Input)
        field.focus()
        await pilot.press(*"qwen2decoderlayer", "enter")
        await until(pilot, lambda: "qwen2decoderlayer" in app.plan.actor.wrap_classes)
        await until(pilot, lambda: "letter by letter, the class is Qwen2DecoderLayer" in said(screen, "#remarks"))
        assert "qwen2decoderlayer" in ticked(screen)
        assert field.value == ""


async def test_size_replaces_the_classes_under_fsdp(make: Callable[..., WizardApp]) -> None:
    app = make(actor=Fsdp(strategy="fsdp"))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await step(pilot)
        before = units(screen)
        app.edit("actor.min_num_params", 100_000_000)
        await until(pilot, lambda: units(screen) != before)
        assert "min_num_params overrides the classes" in said(screen, "#outcome")
        app.edit("actor.strategy", "fsdp2")
        await until(pilot, lambda: "fsdp2 ignores min_num_params" in said(screen, "#outcome"))


async def test_embeddings_and_experts_are_remarked(make: Callable[..., WizardApp]) -> None:
    app = make(known("Qwen/Qwen3-30B-A3B"), Fsdp(wrap_classes=("Embedding", "Qwen3MoeExperts")))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await step(pilot)
        assert "Embedding: fsdp2 wraps embeddings by itself" in said(screen, "#remarks")
        assert "Qwen3MoeExperts: the experts of a layer" in said(screen, "#remarks")
        assert "Repeated blocks of this model (F9/w ticks them): Qwen3MoeDecoderLayer" in said(screen, "#remarks")
        await pilot.press("f9")
        await until(pilot, lambda: ticked(screen) == {"Qwen3MoeDecoderLayer"})
        assert app.plan.actor.wrap_classes == ()


async def test_hostile_class_names_stay_text(make: Callable[..., WizardApp]) -> None:
    evil = LayerClass("[red]Evil\x1b[2J", 1, 10, 10, "other", in_no_split_modules=False, detected=False)
    architecture = dataclasses.replace(known(), layer_classes=(evil, *known().layer_classes))
    app = make(architecture, Fsdp(wrap_classes=("Qwen2DecoderLayer", evil.name)))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await step(pilot)
        index = screen._listed.index(evil.name)
        prompt = str(screen.query_one("#classes", SelectionList).get_option_at_index(index).prompt)
        assert "[red]Evil" in prompt
        assert "\x1b" not in prompt
        assert "\x1b" not in said(screen, "#remarks")


async def test_without_a_model_it_says_so(tmp_path: Path) -> None:
    app = WizardApp(Plan(), tmp_path / "plan.yaml")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await step(pilot)
        assert "go back to the model step" in said(screen, "#outcome")
