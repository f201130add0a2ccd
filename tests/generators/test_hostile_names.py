"""Names with quotes, line breaks and commands in them: generated scripts pass each on whole, and run none."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from generators import render, write
from wizard.plan import Data, Plan, Target, Trainer
from wizard.plan_file import FILE_NAME
from wizard.probe.machine import parse_machine
from wizard.starter import starter_plan

NAMES = {
    "quotes": 'it\'s "a"',
    "commands": "$(touch owned) `touch owned` ; touch owned & touch owned | cat",
    "line breaks": "a\ntouch owned\n#",
    "variables": "$HOME ${HOME} ${oc.env:HOME} !x ~ *",
    "terminal": "\x1b]0;owned\x07\u202e[red]",
    "yaml": "- : # {a: 1} &x *y %TAG",
}
RECORD = f"""#!{sys.executable}
import json, os, sys
json.dump(sys.argv[1:], open(os.path.join(os.path.dirname(__file__), "told.json"), "w"))
"""


@pytest.fixture(params=NAMES)
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Plan, Path, Path, str]:
    """A Plan of two nodes with the name everywhere, the folder it is written to, and what its interpreter is told."""
    name = NAMES[request.param]
    home = tmp_path / f"home {name}".replace("/", "-")
    home.mkdir()
    python, told = home / "python", home / "told.json"
    python.write_text(RECORD)
    python.chmod(0o755)
    plan = dataclasses.replace(
        starter_plan("Qwen/Qwen2.5-7B-Instruct", parse_machine("8x80GB,cc9.0", 2)),
        trainer=Trainer(experiment_name=name, project_name=name),
        data=Data(train_files=name, val_files=name),
        target=Target(python=str(python)),
    )
    write(render(plan), home / "out")
    return plan, home / "out", told, name


def test_scripts_run_with_exactly_these_arguments(hostile: tuple[Plan, Path, Path, str], tmp_path: Path):
    _, folder, told, name = hostile
    for script in folder.glob("*.sh"):
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
        if shutil.which("shellcheck"):
            done = subprocess.run(
                ["shellcheck", "--exclude=SC2016", script], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout
    subprocess.run([folder / "run.sh", f"trainer.experiment_name={name}"], check=True, cwd=tmp_path)
    expected = ["-m", "verl.trainer.main_ppo", "--config-dir", str(folder), "--config-name", "run"]
    assert json.loads(told.read_text()) == [*expected, f"trainer.experiment_name={name}"]
    assert not list(tmp_path.rglob("owned"))


def test_the_job_carries_the_same_files(hostile: tuple[Plan, Path, Path, str]):
    plan, folder, _, _ = hostile
    config, _ = yaml.safe_load_all((folder / "rayjob.yaml").read_text())
    assert config["data"]["run.yaml"] == render(plan)["run.yaml"]
    # In the container there is another interpreter: no path of this machine travels.
    assert plan.target.python not in config["data"]["run.sh"]
    done = subprocess.run(["bash", "-n"], input=config["data"]["run.sh"], text=True, check=False)
    assert done.returncode == 0


def test_values_reach_verls_configuration_whole_and_the_terminal_safe(hostile: tuple[Plan, Path, Path, str]):
    omegaconf = pytest.importorskip("omegaconf")
    _, folder, _, name = hostile
    text = (folder / "run.yaml").read_text()
    written = omegaconf.OmegaConf.create(yaml.safe_load(text))
    assert (written.trainer.experiment_name, written.data.train_files) == (name, name)
    # Someone will `cat` them.
    for file in ("run.yaml", FILE_NAME, "rayjob.yaml"):
        assert "\x1b" not in (folder / file).read_text(), file


def test_sbatch_directives_hold_no_name(hostile: tuple[Plan, Path, Path, str], tmp_path: Path):
    """Slurm reads directives line by line, before any shell does."""
    _, folder, told, _ = hostile
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    programs = {
        "scontrol": "printf 'node1\\nnode2\\n'",
        # What training is told arrives at the one interpreter there is.
        "srun": 'case "$*" in *hostname*) echo 10.0.0.1;; *"import sys, ray"*) echo 16;; *run.sh*)'
        ' while [ "${1%run.sh}" = "$1" ]; do shift; done; exec "$@";; esac',
        "ray": "exit 0",
    }
    for program, text in programs.items():
        (stand_ins / program).write_text(f"#!/bin/sh\n{text}\n")
        (stand_ins / program).chmod(0o755)
    environment = {**os.environ, "PATH": f"{stand_ins}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[1-2]"}
    environment.pop("SLURM_SUBMIT_DIR", None)
    done = subprocess.run(
        ["bash", folder / "slurm.sh", "a b'c"], capture_output=True, text=True, env=environment, timeout=60, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(told.read_text())[-1] == "a b'c"
    assert not list(tmp_path.rglob("owned"))
    directives = [line for line in (folder / "slurm.sh").read_text().splitlines() if line.startswith("#SBATCH")]
    assert len(directives) == 6
    assert all(
        set(line) <= set("#SBATCH --=abcdefghijklmnopqrstuvwxyz0123456789_.ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        for line in directives
    )
