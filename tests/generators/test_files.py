"""What is written, and that verl takes it as it is."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from generators import render, write
from wizard.files import FileExists
from wizard.model.tiny import ensure_tiny
from wizard.plan import Data, GpuGroup, Placement, Plan, Target, Trainer
from wizard.plan_file import load_plan
from wizard.probe.machine import parse_machine
from wizard.starter import starter_plan
from wizard.verl.schema import load_schema

AWKWARD = '/data/it\'s "a" $HOME/${oc.env:X} `id` #1: - x'


@pytest.fixture(scope="module")
def plan() -> Plan:
    return starter_plan("Qwen/Qwen2.5-7B-Instruct", parse_machine("8x80GB,cc9.0"))


def test_same_plan_same_bytes_and_versions_in_every_head(plan: Plan):
    files = render(plan)
    assert files == render(dataclasses.replace(plan))
    assert set(files) == {"run.yaml", "run.sh", "verl-wizard.yaml"}
    for text in files.values():
        assert "verl-wizard 0.1.0" in text
        assert "verl 0.9.1" in text


def test_no_name_of_verls_own_configuration_folder(plan: Plan):
    assert not {Path(name).stem for name in render(plan)} & load_schema().config_files


def test_every_line_has_its_reason(plan: Plan):
    lines = render(plan)["run.yaml"].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("algorithm:"))
    for before, line in zip(lines[start:], lines[start + 1 :], strict=False):
        is_value = ": " in line and not line.lstrip().startswith("#")
        assert not is_value or before.lstrip().startswith("#"), line


def test_the_plan_file_is_the_plan(plan: Plan, tmp_path: Path):
    write(render(plan), tmp_path)
    assert load_plan(tmp_path / "verl-wizard.yaml") == plan


def test_write_is_all_or_nothing(plan: Plan, tmp_path: Path):
    (tmp_path / "run.sh").write_text("mine\n")
    with pytest.raises(FileExists, match=r"run\.sh"):
        write(render(plan), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]
    assert (tmp_path / "run.sh").read_text() == "mine\n"
    write(render(plan), tmp_path, overwrite=True)
    assert (tmp_path / "run.sh.bak").read_text() == "mine\n"
    # Permissions are the person's; only a new script is made executable.
    assert not os.access(tmp_path / "run.sh", os.X_OK)
    write(render(plan), tmp_path / "new")
    assert os.access(tmp_path / "new" / "run.sh", os.X_OK)


class TestRunScript:
    @pytest.fixture
    def folder(self, plan: Plan, tmp_path: Path) -> Path:
        folder = tmp_path / 'it\'s a "folder" $HOME'
        write(render(dataclasses.replace(plan, target=Target(python=""))), folder)
        return folder

    def test_bash_reads_it(self, folder: Path):
        assert subprocess.run(["bash", "-n", folder / "run.sh"], check=False).returncode == 0
        if shutil.which("shellcheck"):
            checked = subprocess.run(["shellcheck", folder / "run.sh"], capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stdout

    def test_arguments_arrive_whole(self, folder: Path, tmp_path: Path):
        stand_in, told = tmp_path / "bin" / "python3", tmp_path / "told.json"
        stand_in.parent.mkdir()
        code = f"import json,sys; json.dump(sys.argv[1:], open({str(told)!r}, 'w'))"
        stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -c "$CODE" "$@"\n')
        stand_in.chmod(0o755)
        environment = {**os.environ, "PATH": f"{stand_in.parent}:{os.environ['PATH']}", "CODE": code}
        extra = ["trainer.experiment_name=it's $HOME", "a=[1, 2]"]
        subprocess.run([folder / "run.sh", *extra], env=environment, check=True, cwd="/")
        assert json.loads(told.read_text()) == [
            *("-m", "verl.trainer.main_ppo", "--config-dir", str(folder), "--config-name", "run"), *extra
        ]  # fmt: skip

    def test_a_version_cannot_smuggle_a_line_into_the_script(self, plan: Plan):
        target = Target(verl_version="0.9.1\ntouch owned\n")
        for text in render(dataclasses.replace(plan, target=target)).values():
            assert "touch owned" not in text.splitlines()

    def test_an_awkward_interpreter_is_quoted(self, plan: Plan, tmp_path: Path):
        python = tmp_path / "my $(touch owned) env" / "python"
        python.parent.mkdir()
        python.write_text('#!/bin/sh\necho ran "$2"\n')
        python.chmod(0o755)
        (tmp_path / "run.sh").write_text(render(dataclasses.replace(plan, target=Target(python=str(python))))["run.sh"])
        done = subprocess.run(["bash", tmp_path / "run.sh"], capture_output=True, text=True, cwd=tmp_path, check=True)
        assert done.stdout == "ran verl.trainer.main_ppo\n"
        assert not (tmp_path / "owned").exists()


def with_everything(plan: Plan) -> Plan:
    actor = dataclasses.replace(
        plan.actor,
        wrap_classes=("Qwen2DecoderLayer",),
        reduce_dtype="bf16",
        fsdp_size=4,
        ulysses_size=2,
        param_offload=True,
    )
    return dataclasses.replace(plan, actor=actor, ref=plan.actor, critic=actor)


@pytest.mark.verl
class TestVerl:
    """verl 0.9.1's own composition and checks."""

    @pytest.fixture(autouse=True)
    def _verl(self):
        pytest.importorskip("verl", reason="verl is not installed in this interpreter")

    @staticmethod
    def composed(folder: Path) -> Any:
        from hydra import compose, initialize_config_dir

        with initialize_config_dir(str(folder.resolve()), version_base=None):
            return compose("run")

    def accepted(self, plan: Plan, folder: Path) -> Any:
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import omega_conf_to_dataclass, validate_config

        write(render(plan), folder)
        config = self.composed(folder)
        validate_config(config, need_reference_policy(config), need_critic(config))
        omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        return config

    @pytest.mark.parametrize("algorithm", ["grpo", "rloo", "reinforce++", "remax"])
    @pytest.mark.parametrize("gpus", ["1x24GB", "8x80GB", "6x40GB"])
    def test_starters_are_accepted(self, algorithm: Any, gpus: str, tmp_path: Path):
        plan = starter_plan("Qwen/Qwen2.5-0.5B-Instruct", parse_machine(gpus), algorithm)
        self.accepted(plan, tmp_path)

    def test_ppo_with_a_critic_is_accepted(self, tmp_path: Path):
        ensure_tiny()
        config = self.accepted(starter_plan("tiny", parse_machine("2x24GB"), "ppo"), tmp_path)
        assert config.critic.model.path == str(ensure_tiny())

    def test_values_arrive_as_the_plan_has_them(self, plan: Plan, tmp_path: Path):
        data = Data(train_files=AWKWARD, val_files="yes", max_prompt_length=777)
        trainer = Trainer(experiment_name="1e5", project_name="null", logger=("console", "a b"))
        changed = dataclasses.replace(with_everything(plan), data=data, trainer=trainer)
        write(render(changed), tmp_path)
        config = self.composed(tmp_path)
        assert config.data.train_files == AWKWARD
        assert config.data.val_files == "yes"
        assert config.data.max_prompt_length == 777
        assert config.trainer.experiment_name == "1e5"
        assert config.trainer.project_name == "null"
        assert list(config.trainer.logger) == ["console", "a b"]
        engine = config.actor_rollout_ref.actor.fsdp_config
        assert list(engine.wrap_policy.transformer_layer_cls_to_wrap) == ["Qwen2DecoderLayer"]
        assert engine.mixed_precision.reduce_dtype == "bf16"
        assert (engine.fsdp_size, engine.ulysses_sequence_parallel_size, engine.param_offload) == (4, 2, True)
        assert config.actor_rollout_ref.actor.optim.lr == pytest.approx(1e-6)
        assert config.actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size == 1

    def test_a_rollout_pool_of_its_own(self, plan: Plan, tmp_path: Path):
        groups = (GpuGroup(("actor", "ref"), 1, 4), GpuGroup(("rollout",), 1, 4))
        config = self.accepted(dataclasses.replace(plan, placement=Placement(groups)), tmp_path)
        assert config.trainer.v1.trainer_mode == "separate_async"
        assert (config.trainer.n_gpus_per_node, config.actor_rollout_ref.rollout.n_gpus_per_node) == (4, 4)

    def test_main_prints_the_composed_configuration(self, plan: Plan, tmp_path: Path):
        """The script itself, with verl's real main: Hydra's --cfg stops before anything starts."""
        write(render(dataclasses.replace(plan, target=Target(python=sys.executable))), tmp_path)
        done = subprocess.run(
            [tmp_path / "run.sh", "--cfg", "job", "--package", "data"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert "max_prompt_length: 1024" in done.stdout
