"""Roles on GPUs of their own: what becomes configuration, what a launcher, and that verl's own classes accept both."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from generators import render, write
from wizard.findings import Severity
from wizard.placing import parse_groups
from wizard.plan import Placement, Plan, Target
from wizard.probe.machine import parse_machine
from wizard.rules import check_plan
from wizard.starter import fitted_plan, starter_plan
from wizard.verl.overrides import parse_override

MODULE = "verl_wizard_roles.py"
APART = "actor+rollout={0}x4; critic={0}x3; ref={0}x1"


def ppo(groups: str, nodes: int = 1, **fields: Any) -> Plan:
    """PPO with a reference, on nodes of eight GPUs."""
    plan = starter_plan("tiny", parse_machine("8x24GB", nodes), "ppo").replace("algorithm.use_kl_loss", True)
    plan = dataclasses.replace(plan, placement=Placement(parse_groups(groups)), **fields)
    return fitted_plan(plan)


def composed(plan: Plan) -> Any:
    return yaml.safe_load(render(plan)["run.yaml"])


def placement_findings(plan: Plan) -> list[str]:
    return [finding.id for finding in check_plan(plan) if finding.id.startswith("placement")]


def test_a_split_critic_is_noted_and_gets_its_module():
    plan = ppo("actor+rollout+ref=1x6; critic=1x2")
    assert placement_findings(plan) == ["placement-launcher"]
    files = render(plan)
    assert "VERL_USE_EXTERNAL_MODULES=verl_wizard_roles" in files["run.sh"]
    assert composed(plan)["trainer"]["n_gpus_per_node"] == 6
    assert "_setup" not in files[MODULE], "the reference stays fused with the actor"


def test_a_fitted_plan_suits_groups_of_every_size():
    """Three and two GPUs: batches divide over all of them, the rollout's replicas over its own."""
    plan = ppo("actor+ref=1x3; rollout=1x3; critic=1x2")
    assert [finding for finding in check_plan(plan) if finding.severity is Severity.ERROR] == []
    samples = plan.batches.mini_batch_size * plan.rollout.n
    assert samples % 3 == 0
    assert samples % 2 == 0


def test_what_configuration_expresses_needs_no_module():
    reward = (("reward.reward_model.enable", True),)
    for groups, extra in (
        ("", ()),
        ("actor+rollout+ref+critic=1x8", ()),
        ("actor+ref+critic=1x4; rollout=1x4", ()),
        ("actor+rollout+ref+critic=1x6; reward=1x2", reward),
        ("actor+rollout+ref+critic+reward=1x8", reward),
    ):
        plan = ppo(groups, extra_overrides=extra)
        assert placement_findings(plan) == []
        assert MODULE not in render(plan)
        assert "VERL_USE_EXTERNAL_MODULES" not in render(plan)["run.sh"]


@pytest.mark.parametrize(
    ("version", "block"), [("0.6.1", ""), ("0.7.1", "reward"), ("0.8.0", "reward"), ("0.9.1", "reward")]
)
def test_a_reward_pool_in_each_release(version: str, block: str):
    """0.6 had the block at the top: `reward_model.enable_resource_pool` in its wheel's main_ppo.py."""
    switch = f"{block}.reward_model.enable".lstrip(".")
    plan = ppo(
        "actor+rollout+ref+critic=1x6; reward=1x2",
        target=Target(verl_version=version),
        extra_overrides=((switch, True),),
    )
    assert placement_findings(plan) == []
    written = composed(plan)
    pool = (written[block] if block else written)["reward_model"]
    assert (pool["enable_resource_pool"], pool["nnodes"], pool["n_gpus_per_node"]) == (True, 1, 2)


def test_the_module_is_found_from_any_folder(tmp_path: Path):
    """The overrides that run.sh passes, read as Hydra reads them."""
    folder = tmp_path / 'it\'s a \\ "folder" $HOME'
    write(render(ppo(APART.format(1), target=Target(python="printf"))), folder)
    text = (folder / "run.sh").read_text().replace('exec "$python"', "exec printf '%s\\0'")
    (folder / "run.sh").write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    told = subprocess.run(
        ["bash", folder / "run.sh"], capture_output=True, text=True, env=environment, check=True
    ).stdout
    given = [parse_override(word) for word in told.split("\0") if word.startswith("+ray_kwargs")]
    values = {override.key.rsplit(".", 1)[-1]: override.value for override in given}
    assert values == {"VERL_USE_EXTERNAL_MODULES": "verl_wizard_roles", "PYTHONPATH": str(folder)}


SPLITS = {
    "one node": ppo(APART.format(1)),
    "two nodes": ppo(APART.format(2), nodes=2),
    "rollout apart too": ppo("actor=2x2; rollout=2x4; critic+ref=2x2", nodes=2),
    "legacy trainer": ppo(APART.format(1), extra_overrides=(("trainer.use_v1", False),)),
}


@pytest.mark.verl
@pytest.mark.slow
def test_verls_resource_pool_manager_makes_every_pool(tmp_path: Path):
    """verl 0.9.1's trainers on a Ray cluster of two nodes that is told of eight GPUs each: the placement groups are
    real, and so are the workers of the reference, up to their first CUDA call."""
    pytest.importorskip("verl", reason="verl is not installed in this interpreter")
    folders = [tmp_path / name for name in SPLITS]
    for folder, plan in zip(folders, SPLITS.values(), strict=True):
        assert placement_findings(plan) == ["placement-launcher"]
        write(render(plan), folder)
    environment = {
        **os.environ,
        "PYTHONPATH": str(folders[0]),
        "VERL_USE_EXTERNAL_MODULES": "verl_wizard_roles",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("split_pools.py")), *map(str, folders)],
        capture_output=True, text=True, env=environment, timeout=240, check=False, cwd=tmp_path,
    )  # fmt: skip
    told = [json.loads(line.removeprefix("POOLS ")) for line in done.stdout.splitlines() if line.startswith("POOLS ")]
    assert len(told) == len(SPLITS), done.stderr[-3000:]
    assert {one["trainer"] for one in told} == {"SplitRolesTrainer"}
    actors = {"one node": "ActorRollout", "rollout apart too": "Actor"}
    for (name, plan), one in zip(SPLITS.items(), told, strict=True):
        actor = actors.get(name, "ActorRollout")
        assert one["workers"] == sorted([actor, "Critic", "RefPolicy"])
        for role, verl_role in (("actor", actor), ("critic", "Critic"), ("ref", "RefPolicy")):
            group = plan.group(role)  # type: ignore[arg-type]
            assert group is not None
            bundles, nodes_of_each, nodes = one["pools"][verl_role]
            assert bundles == [[{"CPU": 3.0, "GPU": 1.0}] * group.gpus_per_node] * group.nodes
            assert nodes_of_each == [1] * group.nodes, "a group's share of a node lies on one node"
            assert nodes == group.nodes
    assert told[0]["gpus"] == 8
    assert told[0]["ref_workers"] == 1
