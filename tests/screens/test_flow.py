"""The whole way by keys alone, at 80×24: answers, files that verl takes, a validation that fails, is fixed and passes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from screen_driver import drawn, next_step, said, standing, tab_to, to_step, until
from textual.pilot import Pilot
from textual.widgets import Input

import screens.validate
from screens.app import Resume, WizardApp
from screens.steps import STEPS
from screens.validate import ValidateScreen
from screens.widgets.dialogs import Ask, Confirm, Help
from wizard.model.catalog import preset
from wizard.model.tiny import ensure_tiny
from wizard.plan import Fsdp, Plan
from wizard.plan_file import load_plan
from wizard.state import state_folder
from wizard.validation.verdict import Verdict

SIZE = (80, 24)
RUN_SECONDS = 150
ACCEPTED_BY_VERL = """
import json, sys
from hydra import compose, initialize_config_dir
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
with initialize_config_dir(sys.argv[1], version_base=None):
    config = compose("run", overrides=["hydra.searchpath=[pkg://verl.trainer.config]"])
validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
print(json.dumps([
    config.actor_rollout_ref.model.path, config.data.max_response_length, config.trainer.n_gpus_per_node,
    config.actor_rollout_ref.actor.fsdp_config.reshard_after_forward, config.algorithm.adv_estimator,
]))
"""


async def replace_text(pilot: Pilot[Any], selector: str, text: str) -> None:
    await tab_to(pilot, selector)
    await pilot.press("home", "shift+end", *text)


@pytest.mark.verl
@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed in this interpreter")
async def test_from_the_first_screen_to_files_that_verl_takes(app: WizardApp, tmp_path: Path) -> None:
    ensure_tiny()
    async with app.run_test(size=SIZE) as pilot:
        await standing(pilot, "environment")
        await next_step(pilot)
        await until(pilot, lambda: "Planned" in said(pilot, "#planned"))
        await replace_text(pilot, "#description", "8x80GB,cc9.0,nvlink")
        await until(pilot, lambda: app.plan.machine.world_size == 8)
        await next_step(pilot)
        await until(pilot, lambda: app.plan.architecture is not None)
        await next_step(pilot)
        await next_step(pilot)
        await next_step(pilot)
        await tab_to(pilot, "#field-actor-reshard_after_forward")
        await pilot.press("space")
        await next_step(pilot)
        await replace_text(pilot, "#field-data-max_response_length", "2048")
        await next_step(pilot)
        await next_step(pilot)
        assert app.plan.data.max_response_length == 2048
        await replace_text(pilot, "#folder", "out")
        await pilot.press("enter")
        await until(pilot, lambda: "run.yaml" in said(pilot, "#written"))
        await next_step(pilot)
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["run.sh", "run.yaml", "verl-wizard.yaml"]
    assert load_plan(out / "verl-wizard.yaml") == app.plan == load_plan(tmp_path / "verl-wizard.yaml")
    done = subprocess.run(
        [sys.executable, "-c", ACCEPTED_BY_VERL, str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    model, response, gpus, reshard, estimator = json.loads(done.stdout.splitlines()[-1])
    assert (response, gpus, reshard, estimator) == (2048, 8, False, "grpo")
    assert {path.name for path in Path(model).iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.mark.slow
async def test_a_wrong_class_fails_the_fix_passes(app: WizardApp) -> None:
    """Two gloo ranks for real, twice."""
    ensure_tiny()
    app.session.begin(Plan(architecture=preset("tiny"), actor=Fsdp(wrap_classes=("Qwen2DecoderLayr",))))
    async with app.run_test(size=SIZE) as pilot:
        screen = await to_step(pilot, "validate")
        assert isinstance(screen, ValidateScreen)
        await pilot.press("escape", "s")
        assert screen.running
        await until(pilot, lambda: not screen.running, RUN_SECONDS)
        assert said(pilot, "#verdict").startswith("Failed in step wrap")
        assert "Qwen2DecoderLayr" in said(pilot, "#verdict")
        assert screen.first_fix is not None
        await pilot.press("f4")
        assert "Qwen2DecoderLayr" not in app.plan.actor.wrap_classes
        await pilot.press("s")
        await until(pilot, lambda: not screen.running, RUN_SECONDS)
        assert said(pilot, "#verdict") == "Passed: every step ran on every rank."
        await pilot.pause()
        shown = drawn(pilot)
        assert "fsdp units: 7" in shown
        assert "gradient norm" in shown


async def test_a_run_is_cancelled_and_not_left_by_accident(app: WizardApp) -> None:
    ensure_tiny()
    async with app.run_test(size=SIZE) as pilot:
        screen = await to_step(pilot, "validate")
        assert isinstance(screen, ValidateScreen)
        await pilot.press("escape", "s")
        await until(pilot, lambda: screen._run is not None)
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        assert "running" in drawn(pilot)
        await pilot.press("n")
        await until(pilot, lambda: app.screen is screen)
        await pilot.press("c")
        await until(pilot, lambda: not screen.running)
        assert said(pilot, "#verdict").startswith("Cancelled")


async def test_a_verdict_of_hostile_text_is_shown_as_text(app: WizardApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await to_step(pilot, "validate")
        assert isinstance(screen, ValidateScreen)
        screen._conclude(Verdict("failed", "load", 0, "[bold]no[/] \x1b]0;title\x07 such\nfile"))
        await pilot.pause()
        assert "[bold]no[/] \N{REPLACEMENT CHARACTER}]0;title" in said(pilot, "#verdict").replace("\n", " ")
        assert "\x1b" not in drawn(pilot)


async def test_wrong_input_stays_and_is_explained(app: WizardApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await to_step(pilot, "batches")
        before = app.plan.rollout.n
        await replace_text(pilot, "#field-rollout-n", "many")
        row = app.screen.query_one("#field-rollout-n")
        assert row.query_one(Input).value == "many"
        assert "rollout.n" in drawn(pilot)
        assert row.has_class("wrong")
        assert app.plan.rollout.n == before
        await next_step(pilot)
        await next_step(pilot, "f2")
        assert row.query_one(Input).value == "many"
        await replace_text(pilot, "#field-rollout-n", "3")
        assert not row.has_class("wrong")
        assert app.plan.rollout.n == 3


async def test_undo_and_redo(app: WizardApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await to_step(pilot, "offload")
        await tab_to(pilot, "#field-actor-param_offload")
        await pilot.press("space")
        assert app.plan.actor.param_offload
        await pilot.press("f7")
        assert not app.plan.actor.param_offload
        assert not app.screen.query_one("#field-actor-param_offload Tick").value  # type: ignore[attr-defined]
        await pilot.press("f8")
        assert app.plan.actor.param_offload


async def test_values_follow_machine_and_model_until_the_person_sets_one(app: WizardApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await to_step(pilot, "gpus")
        await replace_text(pilot, "#description", "8x80GB,cc9.0,nvlink")
        await to_step(pilot, "model")
        await replace_text(pilot, "#model", "72B")
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.plan.model.id == "Qwen/Qwen2.5-72B-Instruct")
        assert app.plan.model.attention == "flash_attention_2"
        assert app.plan.rollout.tensor_parallel_size > 1
        await until(pilot, lambda: not [f for f in app.findings if f.field == "memory"])
        await to_step(pilot, "batches")
        await replace_text(pilot, "#field-batches-train_batch_size", "512")
        chosen = app.plan
        await to_step(pilot, "gpus")
        await replace_text(pilot, "#description", "4x80GB,cc9.0,nvlink")
        assert app.plan.batches == chosen.batches
        assert app.plan.machine.world_size == 4
        await to_step(pilot, "batches")
        await pilot.press("f9")
        assert app.plan.batches.train_batch_size == 256


async def test_what_does_not_fit_is_a_finding_that_one_key_mends(app: WizardApp) -> None:
    plan = Plan(architecture=preset("Qwen/Qwen2.5-7B-Instruct"))
    async with app.run_test(size=SIZE) as pilot:
        await to_step(pilot, "gpus")
        app.set_plan(plan)
        await replace_text(pilot, "#description", "1x80GB,cc9.0")
        app.edit("actor.master_dtype", "fp32")
        app.edit("actor.offload_policy", False)
        await to_step(pilot, "offload")
        await until(pilot, lambda: any(f.id == "gpu-does-not-fit" for f in app.findings))
        await until(pilot, lambda: "it runs out of" in drawn(pilot))
        await pilot.press("f4")
        await until(pilot, lambda: not any(f.id == "gpu-does-not-fit" for f in app.findings))


async def test_a_change_while_a_step_is_being_made_reaches_it(app: WizardApp) -> None:
    """The rules' timer and a background answer come when they come: also between a key and the screen it opens."""
    async with app.run_test(size=SIZE) as pilot:
        app.go("offload")
        assert not app.screen.is_mounted
        app.edit("actor.param_offload", True)
        app._judge()
        await standing(pilot, "offload")
        assert app.screen.query_one("#field-actor-param_offload Tick").value  # type: ignore[attr-defined]


async def test_an_error_in_the_background_is_told_and_ends_nothing(
    app: WizardApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise KeyError("foreseen")

    monkeypatch.setattr(screens.validate, "spec_from_plan", fail)
    async with app.run_test(size=SIZE) as pilot:
        screen = await to_step(pilot, "validate")
        assert isinstance(screen, ValidateScreen)
        screen.action_start()
        await until(pilot, lambda: bool(app._notifications))
        told = [notification.message for notification in app._notifications]
        assert f"the traceback is in {state_folder() / 'error.log'}" in told[0]
        assert not screen.running
        assert app.is_running


async def test_answers_are_saved_and_offered_again(app: WizardApp, tmp_path: Path) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await to_step(pilot, "placement")
        await replace_text(pilot, "#field-trainer-experiment_name", "mine")
        await next_step(pilot)
        saved = load_plan(tmp_path / "verl-wizard.yaml")
        assert saved.trainer.experiment_name == "mine"
    offer = Resume(saved, "This folder holds answers.")
    again = WizardApp(Plan(), tmp_path / "verl-wizard.yaml", offer=offer)
    async with again.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: isinstance(again.screen, Confirm))
        assert load_plan(tmp_path / "verl-wizard.yaml") == saved
        await pilot.press("enter")
        await until(pilot, lambda: again.plan == saved)
    anew = WizardApp(Plan(), tmp_path / "verl-wizard.yaml", offer=offer)
    async with anew.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: isinstance(anew.screen, Confirm))
        await pilot.press("n")
        await until(pilot, lambda: len(list(tmp_path.glob("verl-wizard-*.yaml"))) == 1)
        assert load_plan(next(tmp_path.glob("verl-wizard-*.yaml"))) == saved


async def test_files_are_replaced_only_with_consent(app: WizardApp, tmp_path: Path) -> None:
    ensure_tiny()
    (tmp_path / "verl-run").mkdir()
    theirs = tmp_path / "verl-run" / "run.yaml"
    theirs.write_text("mine: true\n", encoding="utf-8")
    async with app.run_test(size=SIZE) as pilot:
        screen = await to_step(pilot, "review")
        await tab_to(pilot, "#folder")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is screen)
        assert theirs.read_text(encoding="utf-8") == "mine: true\n"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: app.screen is screen and "run.sh" in said(pilot, "#written"))
        assert "verl-wizard" in theirs.read_text(encoding="utf-8")
        assert theirs.with_name("run.yaml.bak").read_text(encoding="utf-8") == "mine: true\n"


async def test_another_wizard_on_the_same_file_is_noticed(app: WizardApp, tmp_path: Path) -> None:
    file = tmp_path / "verl-wizard.yaml"
    async with app.run_test(size=SIZE) as pilot:
        await to_step(pilot, "precision")
        file.write_text(file.read_text(encoding="utf-8").replace("run", "walk"), encoding="utf-8")
        theirs = file.read_text(encoding="utf-8")
        app.edit("actor.strategy", "fsdp")
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        assert file.read_text(encoding="utf-8") == theirs
        await pilot.press("y")
        await until(pilot, lambda: load_plan(file).actor.strategy == "fsdp")
        assert file.with_name(f"{file.name}.bak").read_text(encoding="utf-8") == theirs


async def test_plans_are_compared(app: WizardApp, tmp_path: Path) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await to_step(pilot, "precision")
        app.edit("actor.strategy", "fsdp")
        app.action_compare()
        await until(pilot, lambda: isinstance(app.screen, Ask))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Help))
        shown = drawn(pilot)
        assert "actor.strategy" in shown
        assert "fsdp2" in shown
        assert "predicted peak" in shown
        await pilot.press("escape")
        await standing(pilot, "precision")


@pytest.mark.parametrize("name", ["[bold]x[/]", "a\x1b[2Jb", "a\nb", "$(touch owned)", "'\";rm"])
async def test_hostile_names_are_text(app: WizardApp, tmp_path: Path, name: str) -> None:
    app.session.begin(Plan(architecture=preset("tiny"), actor=Fsdp(wrap_classes=(name,))).replace("model.id", name))
    async with app.run_test(size=SIZE) as pilot:
        for step in STEPS[2:]:
            await to_step(pilot, step.id)
            await pilot.pause()
            shown = drawn(pilot)
            assert not {"\x1b", "\x07"} & set(shown)
        await to_step(pilot, "review")
        assert name.splitlines()[0].split("\x1b")[0][:6] in drawn(pilot)
    assert not (tmp_path / "owned").exists()
    assert load_plan(tmp_path / "verl-wizard.yaml").model.id == name
