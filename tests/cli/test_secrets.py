"""Keys and passwords with real forms, through every command that writes: none of them reaches a file or a message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HUB = "hf_" + "aB3d" * 9
OPENAI = "sk-proj-" + "Zz9x" * 8
WANDB = "0123456789abcdef0123456789abcdef01234567"
"""Without a form of its own: only the name of its variable says what it is."""
PASSWORD = "s3cr3tPassw0rd"
URL = f"https://user:{PASSWORD}@huggingface.co/some/model"
CONFIG = f"""
actor_rollout_ref: {{model: {{path: "{URL}"}}}}
ray_kwargs: {{ray_init: {{runtime_env: {{env_vars: {{WANDB_API_KEY: {WANDB}, HF_TOKEN: {HUB}}}}}}}}}
reward_model: {{api_key: {OPENAI}}}
"""
COMMANDS = {
    "check": (("check", "theirs.yaml"), 1),
    "check --json": (("check", "theirs.yaml", "--json"), 1),
    "check overrides": (("check", "--json", "--", f"+ray_kwargs.ray_init.runtime_env.env_vars.HF_TOKEN={HUB}"), 1),
    "generate": (("generate", "--model", "tiny", "--gpus", "8x80GB", "--set", f"trainer.experiment_name={OPENAI}", "--out", "out"), 2),
    "generate a URL": (("generate", "--model", "tiny", "--gpus", "8x80GB", "--set", f"data.train_files={URL}", "--out", "out"), 2),
    "wizard": (("--plain", "theirs.yaml"), 2),
    "debug": (("debug", "theirs.yaml", "--cpu", "--report", "report.md"), 2),
    "an argument": (("validate", "--cpu", f"--nope={URL}"), 2),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_secret_is_written_or_shown(name: str, tmp_path: Path):
    (tmp_path / "theirs.yaml").write_text(CONFIG)
    arguments, code = COMMANDS[name]
    environment = {**os.environ, "WANDB_API_KEY": WANDB, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "wizard", *arguments],
        capture_output=True, text=True, cwd=tmp_path, env=environment, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    texts = {file: file.read_text() for file in tmp_path.rglob("*") if file.is_file() and file.name != "theirs.yaml"}
    for place, text in {"stdout": done.stdout, "stderr": done.stderr, **texts}.items():
        assert not [secret for secret in (HUB, OPENAI, WANDB, PASSWORD) if secret in text], place


def test_a_variable_stands_in_for_a_secret(tmp_path: Path):
    """What the refusal advises: the files then hold the variable's name, as OmegaConf reads it."""
    omegaconf = pytest.importorskip("omegaconf")
    from generators import render
    from wizard.verl.importer import plan_from_file

    key = "ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY"
    path = tmp_path / "theirs.yaml"
    path.write_text("ray_kwargs: {ray_init: {runtime_env: {env_vars: {WANDB_API_KEY: '${oc.env:MY_KEY}'}}}}\n")
    plan, _ = plan_from_file(path)
    written = omegaconf.OmegaConf.create(render(plan)["run.yaml"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_KEY", WANDB)
        assert omegaconf.OmegaConf.select(written, key) == WANDB
