"""Scripts for several nodes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from generators import render, write
from wizard.plan import GpuGroup, Placement, Plan, Target, Trainer
from wizard.probe.machine import parse_machine
from wizard.starter import starter_plan


@pytest.fixture(scope="module")
def two_nodes() -> Plan:
    return starter_plan("Qwen/Qwen2.5-7B-Instruct", parse_machine("8x80GB,cc9.0", 2))


@pytest.fixture(scope="module")
def split_critic() -> Plan:
    plan = starter_plan("tiny", parse_machine("8x24GB"), "ppo")
    groups = (GpuGroup(("actor", "rollout"), 1, 6), GpuGroup(("critic",), 1, 2))
    return dataclasses.replace(plan, placement=Placement(groups))


def test_one_node_needs_no_cluster_scripts():
    plan = starter_plan("Qwen/Qwen3-0.6B", parse_machine("1x24GB"))
    assert set(render(plan)) == {"run.yaml", "run.sh", "verl-wizard.yaml"}


def test_bash_and_shellcheck_are_content(two_nodes: Plan, split_critic: Plan, tmp_path: Path):
    hostile = dataclasses.replace(
        two_nodes,
        trainer=Trainer(experiment_name="a'b $(touch owned)\n; x"),
        target=Target(python="/x y/$(touch owned)\npython", verl_version="0.9.1"),
    )
    for index, plan in enumerate((two_nodes, split_critic, hostile)):
        folder = tmp_path / str(index)
        write(render(plan), folder)
        for script in folder.glob("*.sh"):
            assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
            if shutil.which("shellcheck"):
                # SC2016 only notes that a `$` in single quotes stays one: that is what quoting is for.
                command = ["shellcheck", *(["--exclude=SC2016"] if plan is hostile else []), script]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stdout


def test_slurm_asks_for_what_verl_will(two_nodes: Plan):
    text = render(two_nodes)["slurm.sh"]
    assert "#SBATCH --nodes=2\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    # verl 0.9.1 single_controller/ray/base.py: three CPUs a GPU, and some for Ray and the trainer.
    cpus = int(text.split("--cpus-per-task=")[1].split("\n")[0])
    assert cpus >= 3 * 8


def test_slurm_starts_ray_everywhere_then_verl_on_the_head(two_nodes: Plan, tmp_path: Path):
    """The script itself, with Slurm's and Ray's programs recording how they were called."""
    write(render(two_nodes), tmp_path)
    stand_ins, told = tmp_path / "bin", tmp_path / "told"
    stand_ins.mkdir()
    recorder = f'#!/bin/sh\necho "$(basename "$0") $*" >> {told}\n'
    programs = {
        "scontrol": recorder + "printf 'node1\\nnode2\\n'\n",
        "srun": recorder + 'case "$*" in *hostname*) echo 10.0.0.1;; *"import sys, ray"*) echo 16;; esac\n',
    }
    for name, text in programs.items():
        (stand_ins / name).write_text(text)
        (stand_ins / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{stand_ins}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[1-2]"}
    environment.pop("SLURM_SUBMIT_DIR", None)
    done = subprocess.run(
        ["bash", tmp_path / "slurm.sh", "trainer.total_epochs=1"],
        capture_output=True, text=True, env=environment, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    calls = told.read_text().splitlines()
    starts = [call for call in calls if "ray start" in call]
    assert any("--nodelist=node1" in call and "--head --node-ip-address=10.0.0.1" in call for call in starts)
    assert any("--nodelist=node2" in call and "--address=10.0.0.1:6379" in call for call in starts)
    training = next(call for call in calls if "run.sh" in call)
    assert "--nodelist=node1 env RAY_ADDRESS=10.0.0.1:6379" in training
    assert training.endswith("/run.sh trainer.total_epochs=1")
    assert any("ray stop" in call for call in calls)


def test_rayjob_is_yaml_that_carries_the_files(two_nodes: Plan):
    files = render(two_nodes)
    config, job = yaml.safe_load_all(files["rayjob.yaml"])
    assert config["data"] == {"run.yaml": files["run.yaml"], "run.sh": files["run.sh"]}
    spec = job["spec"]["rayClusterSpec"]
    assert spec["workerGroupSpecs"][0]["replicas"] == 1
    container = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
