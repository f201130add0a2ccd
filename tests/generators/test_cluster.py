"""Scripts for several nodes: read by shellcheck, and run."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from generators import render, write
from tests.generators.cluster_stand_ins import StandIns
from wizard.placing import parse_groups
from wizard.plan import Placement, Plan, Target, Trainer
from wizard.probe.machine import parse_machine
from wizard.starter import starter_plan

AWKWARD = 'it\'s a "folder" $HOME'


def placed(groups: str, nodes: int = 2) -> Plan:
    plan = starter_plan("tiny", parse_machine("8x24GB", nodes), "ppo").replace("algorithm.use_kl_loss", True)
    return dataclasses.replace(plan, placement=Placement(parse_groups(groups)))


@pytest.fixture(scope="module")
def two_nodes() -> Plan:
    return starter_plan("Qwen/Qwen2.5-7B-Instruct", parse_machine("8x80GB,cc9.0", 2))


@pytest.fixture
def stand_ins(tmp_path: Path) -> Iterator[StandIns]:
    pytest.importorskip("ray", reason="Ray is not installed in this interpreter")
    made = StandIns(tmp_path)
    yield made
    made.close()


def test_one_node_needs_no_cluster_scripts():
    plan = starter_plan("Qwen/Qwen3-0.6B", parse_machine("1x24GB"))
    assert set(render(plan)) == {"run.yaml", "run.sh", "verl-wizard.yaml"}


def test_bash_and_shellcheck_are_content(two_nodes: Plan, tmp_path: Path):
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    hostile = dataclasses.replace(
        two_nodes,
        trainer=Trainer(experiment_name="a'b $(touch owned)\n; x"),
        target=Target(python="/x y/$(touch owned)\npython", verl_version="0.9.1"),
    )
    for index, plan in enumerate((two_nodes, placed("actor+rollout=2x4; critic=2x2; ref=2x2"), hostile)):
        folder = tmp_path / str(index)
        files = render(plan)
        assert files == render(dataclasses.replace(plan)), "the same Plan gives the same bytes"
        write(files, folder)
        scripts = sorted(folder.glob("*.sh"))
        assert [script.name for script in scripts] == ["ray_node.sh", "run.sh", "slurm.sh"]
        for script in scripts:
            assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
        # SC2016 only notes that a `$` in single quotes stays one: that is what quoting is for.
        command = [shellcheck, *(["--exclude=SC2016"] if plan is hostile else []), *scripts]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("plan", "cpus"),
    [
        # 8 bundles of 3 CPUs a node; TransferQueue's 8 storage units dealt out over the nodes and its controller.
        (placed(""), 8 * 3 + 4 + 1),
        (placed("", nodes=4), 8 * 3 + 2 + 1),
        # A rollout of its own has bundles of 2 CPUs: 4 × 3 + 4 × 2.
        (placed("actor+ref+critic=2x4; rollout=2x4"), 4 * 3 + 4 * 2 + 4 + 1),
        # 0.6.1 gives each GPU one CPU; its task runner takes another.
        (placed("").replace("target.verl_version", "0.6.1"), 8 + 1),
    ],
)
def test_a_node_is_asked_for_all_cpus_that_verl_will(plan: Plan, cpus: int):
    """Read in verl's and TransferQueue's source; test_ray_demand.py counts them in a running cluster."""
    files = render(plan)
    asked = int(files["slurm.sh"].split("--cpus-per-task=")[1].split("\n")[0])
    assert cpus <= asked <= cpus + 4
    _, job = yaml.safe_load_all(files["rayjob.yaml"])
    [container] = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "cpu": asked}


def run(command: list[Any], stand_ins: StandIns, **options: Any) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env=stand_ins.environment, timeout=200, check=False, **options
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_slurm_starts_ray_everywhere_then_verl_on_the_head(two_nodes: Plan, stand_ins: StandIns, tmp_path: Path):
    """The script as it is; both of its nodes are on this machine, with GPUs that Ray is told of."""
    folder = tmp_path / AWKWARD
    write(render(dataclasses.replace(two_nodes, target=Target(python=str(stand_ins.python)))), folder)
    run(["bash", folder / "slurm.sh", "trainer.experiment_name=it's $HOME"], stand_ins)
    main = stand_ins.main()
    assert main["arguments"] == [
        *("--config-dir", str(folder), "--config-name", "run"), "trainer.experiment_name=it's $HOME"
    ]  # fmt: skip
    assert (main["gpus"], main["pools"]) == ([8, 8], True)
    assert main["cpus"] == [33, 33]
    starts = [(node, command) for node, command in stand_ins.steps() if "start" in command]
    assert sorted(node for node, _ in starts) == ["node1", "node2"]
    assert all(("--head" in command) == (node == "node1") for node, command in starts)
    [training] = [(node, command) for node, command in stand_ins.steps() if command[-2].endswith("/run.sh")]
    assert training[0] == "node1"
    _, alive = psutil.wait_procs(list(stand_ins.processes()), timeout=30)
    assert alive == [], "the job leaves no Ray behind"


def test_slurm_says_where_it_has_to_be_submitted(two_nodes: Plan, stand_ins: StandIns, tmp_path: Path):
    write(render(two_nodes), tmp_path / "run")
    environment = {**stand_ins.environment, "SLURM_SUBMIT_DIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", tmp_path / "run" / "slurm.sh"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert "submit slurm.sh from the folder it was written to" in done.stderr


@pytest.mark.slow
def test_plain_ray_nodes_join_and_verl_finds_them(two_nodes: Plan, stand_ins: StandIns, tmp_path: Path):
    """Head and worker by the same script, then run.sh beside the head, as the head's output says."""
    folder = tmp_path / AWKWARD
    write(render(dataclasses.replace(two_nodes, target=Target(python=str(stand_ins.python)))), folder)
    # Without it Ray counts the few CPUs that are really here.
    stand_ins.environment["RAY_OVERRIDE_RESOURCES"] = '{"CPU": 33}'
    said = run([folder / "ray_node.sh"], stand_ins)
    assert "'ray status' shows 16 GPUs" in said
    address = said.split("./ray_node.sh ")[1].split()[0]
    run([folder / "ray_node.sh", address], stand_ins)
    run([folder / "run.sh"], stand_ins, cwd="/")
    main = stand_ins.main()
    assert main["arguments"] == ["--config-dir", str(folder), "--config-name", "run"]
    assert (main["gpus"], main["pools"]) == ([8, 8], True)


def test_rayjob_is_what_kuberay_takes():
    """Field by field as KubeRay's `ray.io_rayjobs.yaml` has them (v1), and the files as they are."""
    plan = placed("actor+rollout=3x4; critic+ref=3x4", nodes=3).replace("target.python", "/home/me/venv/bin/python")
    files = render(plan)
    config, job = yaml.safe_load_all(files["rayjob.yaml"])
    assert (config["apiVersion"], config["kind"]) == ("v1", "ConfigMap")
    for name in ("run.yaml", "verl_wizard_roles.py"):
        assert config["data"][name] == files[name]
    # The interpreter of this machine is not in the image; all else of the script is the same.
    assert config["data"]["run.sh"] == files["run.sh"].replace("/home/me/venv/bin/python", "python3")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) == {"entrypoint", "shutdownAfterJobFinishes", "rayClusterSpec"}
    cluster = job["spec"]["rayClusterSpec"]
    head, [worker] = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert set(head) == {"rayStartParams", "template"}
    assert set(worker) == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    assert worker["replicas"] == worker["minReplicas"] == worker["maxReplicas"] == 2
    for group in (head, worker):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        [container] = group["template"]["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in group["template"]["spec"]["volumes"]}
        assert set(mounts) == set(volumes)
        assert job["spec"]["entrypoint"] == f"{mounts['config']}/run.sh"
        assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
        assert volumes["config"]["configMap"]["defaultMode"] & 0o111, "run.sh can be executed"
