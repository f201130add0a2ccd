"""`verl-wizard debug CONFIG` as scripts and people use it: exit codes, files, and what a report may hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.faults.conftest import plan_of
from tests.faults.models import HEALTHY, consenting, with_own_code
from wizard.plan import Plan
from wizard.plan_file import FILE_NAME, load_plan, plan_to_yaml

pytest.importorskip("torch")
TOKEN = "hf_" + "aB3dE5fG7hJ9" * 3
TELLTALE = HEALTHY + f"\nprint('logged in with {TOKEN}', flush=True)\n"
SHORT = ("--cpu", "--world-size", "2", "--tokens", "64")


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "wizard", "debug", *map(str, arguments)]


def debug(*arguments: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, cwd=home, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")},
    )  # fmt: skip


def saved(plan: Plan, folder: Path) -> Path:
    path = folder / FILE_NAME
    path.write_text(plan_to_yaml(plan))
    return path


@pytest.mark.slow
def test_a_climb_ends_with_files_and_a_report_without_secrets(model: Path, tmp_path: Path):
    """The model's code prints a token, the model lies below the home folder, and the class is written wrong."""
    plan = plan_of(with_own_code(model, TELLTALE), wrap_classes=("qwen2decoderlayer",), param_dtype="fp32")
    plan = consenting(plan)
    options = ("--no-checks", "--fix", "--json", "--out", "out", "--report", "report.md")
    done = debug(saved(plan, tmp_path), *SHORT, *options, home=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    verdicts = [(line["rung"], line["outcome"], line["kept"]) for line in lines if line["kind"] == "rung"]
    assert [line["cause"] for line in lines if line["kind"] == "diagnosis"] == ["wrap-class-missing"]
    assert ("FSDP", "failed", False) in verdicts
    assert ("DDP", "passed", True) in verdicts, "what the fix does not touch is not run again"
    assert verdicts[-1] == ("as planned", "passed", False)
    assert load_plan(tmp_path / "out" / FILE_NAME).actor.wrap_classes == ("Qwen2DecoderLayer",)
    assert (tmp_path / "out" / "run.yaml").exists()
    report = (tmp_path / "report.md").read_text()
    assert "logged in with" in report, "the log's end belongs to it"
    assert "actor.wrap_classes: [qwen2decoderlayer] -> [Qwen2DecoderLayer]" in report
    assert TOKEN not in report
    assert str(tmp_path) not in report


def test_a_configuration_that_verl_refuses_stops_before_anything_runs(model: Path, tmp_path: Path):
    done = debug(saved(plan_of(model, ulysses_size=3), tmp_path), *SHORT, home=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "ulysses" in done.stdout
    assert not (tmp_path / "state").exists()


def test_what_is_there_is_not_replaced(model: Path, tmp_path: Path):
    report = tmp_path / "report.md"
    report.write_text("mine")
    done = debug(saved(plan_of(model), tmp_path), *SHORT, "--report", report, home=tmp_path)
    assert done.returncode == 2
    assert "--overwrite" in done.stderr
    assert report.read_text() == "mine"


@pytest.mark.parametrize("text", ["actor: [", "\x00\xff", "- 1\n- 2\n"])
def test_what_is_no_configuration_is_a_usage_error(tmp_path: Path, text: str):
    (tmp_path / "a.yaml").write_text(text)
    done = debug(tmp_path / "a.yaml", *SHORT, home=tmp_path)
    assert done.returncode == 2
    assert "a.yaml" in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_ends_the_climb_and_its_processes(model: Path, tmp_path: Path):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(
        command(saved(plan_of(model), tmp_path), *SHORT, "--json"), stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        # Attempt, checks, one device: the run of the next rung has begun.
        for _ in range(3):
            process.stdout.readline()
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
