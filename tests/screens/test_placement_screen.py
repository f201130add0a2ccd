"""Roles are split onto GPUs of their own by keys alone, at 80×24."""

from __future__ import annotations

import dataclasses

from screen_driver import drawn, said, standing, tab_to, to_step, until
from textual.pilot import Pilot
from textual.widgets import Input

from screens.app import WizardApp
from wizard.memory import predict
from wizard.plan import GpuGroup, Plan
from wizard.probe.machine import parse_machine
from wizard.starter import starter_plan

SIZE = (80, 24)


def ppo(gpus: str = "8x80GB,cc9.0") -> Plan:
    plan = starter_plan("Qwen/Qwen2.5-7B-Instruct", parse_machine(gpus), "ppo")
    return plan.replace("algorithm.use_kl_loss", True)


async def typed(pilot: Pilot[int], text: str) -> None:
    await tab_to(pilot, "#groups")
    await pilot.press("home", "shift+end", *text)


async def test_critic_and_reference_are_split_by_keys(app: WizardApp) -> None:
    app.session.begin(ppo())
    async with app.run_test(size=SIZE) as pilot:
        await to_step(pilot, "placement")
        await tab_to(pilot, "#layouts")
        # Past the rollout, the critic and the reference alone; the reward model's line is not offered.
        await pilot.press("down", "down", "down", "down", "enter")
        await until(pilot, lambda: len(app.plan.placement.groups) == 3)
        assert app.plan.placement.groups == (
            GpuGroup(("actor", "rollout"), 1, 4), GpuGroup(("critic",), 1, 2), GpuGroup(("ref",), 1, 2)
        )  # fmt: skip
        groups = predict(app.plan).groups
        await until(pilot, lambda: "in critic update" in said(pilot, "#roles"))
        lines = said(pilot, "#roles").splitlines()
        for line, bar, group in zip(lines, ("[####....]", "[....##..]", "[......##]"), groups, strict=True):
            assert bar in line
            assert group.peak
            assert f"{group.peak.needed_bytes / 2**30:.1f} of 79.6 GiB" in line
            assert len(line) <= SIZE[0] - 3, "a line of its own at 80 columns"
        await until(pilot, lambda: "placement-launcher" in {finding.id for finding in app.findings})
        await tab_to(pilot, "#groups")
        await pilot.pause()
        shown = drawn(pilot)
        for line in lines:
            assert line.rstrip() in shown
        await pilot.press("f3")
        await standing(pilot, "review")
        await until(pilot, lambda: "critic (1 × 2): " in said(pilot, "#phases"))


async def test_a_mapping_that_cannot_be_is_named_and_mended(app: WizardApp) -> None:
    app.session.begin(ppo())
    async with app.run_test(size=SIZE) as pilot:
        await to_step(pilot, "placement")
        await typed(pilot, "spare=1x2")
        assert "'spare' is no role" in said(pilot, "#groups-problem")
        await typed(pilot, "actor+rollout=1x4; critic=1x2")
        await until(pilot, lambda: "ref has no GPUs" in drawn(pilot))
        await pilot.press("escape", "f4")
        await until(pilot, lambda: app.plan.group("ref") == GpuGroup(("actor", "rollout", "ref"), 1, 4))
        await pilot.press("f7")
        await until(pilot, lambda: app.plan.group("ref") is None)
        # What was typed is the Plan's: nothing is lost on the way back.
        assert app.screen.query_one("#groups", Input).value == "actor+rollout=1x4; critic=1x2"


async def test_a_layout_that_cannot_be_chosen_says_why(app: WizardApp) -> None:
    plan = ppo("2x80GB,cc9.0")
    app.session.begin(dataclasses.replace(plan, algorithm=dataclasses.replace(plan.algorithm, name="grpo")))
    async with app.run_test(size=SIZE) as pilot:
        await to_step(pilot, "placement")
        shown = drawn(pilot)
        assert "the critic on GPUs of its own (grpo has no critic)" in shown
        await tab_to(pilot, "#layouts")
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: len(app.plan.placement.groups) == 2)
        assert app.plan.group("ref") == GpuGroup(("ref",), 1, 1), "the disabled line is passed over"
