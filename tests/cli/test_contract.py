"""The command line as scripts rely on it: exit codes, streams, start-up time, and what is never imported."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from wizard import __version__
from wizard.cli import COMMANDS

HEAVY = ("torch", "transformers", "verl", "ray", "numpy")


def run(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wizard", *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment}, check=False, timeout=120,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_version_and_help():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"verl-wizard {__version__}\n")
    done = run("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"  {command} " in done.stdout
        assert run(command, "--help").returncode == 0


def test_help_is_quick():
    """The contract is 150 ms; processor time, since a loaded machine adds waiting. An import of torch takes seconds."""
    assert min(_processor_seconds("--help") for _ in range(3)) < 0.4


def _processor_seconds(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("inspect", "Qwen/Qwen2.5-7B-Instruct"),
        ("explain", "reduce-dtype"),
        ("estimate", "--model", "Qwen/Qwen2.5-7B-Instruct", "--gpus", "8x80GB"),
        ("check", "--", "actor_rollout_ref.rollout.name=vllm"),
        ("generate", "--model", "Qwen/Qwen2.5-7B-Instruct", "--gpus", "8x80GB", "--out", "out"),
    ],
)
def test_nothing_heavy_is_imported(arguments: tuple[str, ...], tmp_path: Path):
    code = (
        "import sys, wizard.cli as c\n"
        "try: c.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stderr.splitlines()[-1] == "HEAVY []", done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--no-such-flag",), 2, "no-such-flag"),
        (("generate",), 2, "--model"),
        (("generate", "--model", "tiny", "--gpus", "many", "--out", "x"), 2, "many"),
        (("generate", "--model", "tiny", "--gpus", "cpu", "--out", "x", "--set", "actor.nope=1"), 2, "actor.nope"),
        (("generate", "--model", "tiny", "--gpus", "cpu", "--out", "x", "--set", "actor.fsdp_size=six"), 2, "six"),
        (("generate", "--model", "tiny", "--gpus", "cpu", "--out", "x", "--set", "oops"), 2, "FIELD=VALUE"),
        (("generate", "--model", "/no/such/model", "--gpus", "cpu", "--out", "x"), 1, "/no/such/model"),
        (("validate", "/no/such/folder"), 2, "/no/such/folder"),
        (("inspect", "/no/such/model"), 1, "no such folder"),
        (("explain", "no-such-rule"), 2, "no rule"),
        (("check", "/no/such.yaml"), 2, "/no/such.yaml"),
        (("check",), 2, "give a file"),
    ],
)
def test_exit_codes_and_streams_of_what_goes_wrong(arguments: tuple[str, ...], code: int, said: str, tmp_path: Path):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_generate_writes_nothing_when_verl_would_fail(tmp_path: Path):
    edits = ("--set", "actor.ulysses_size=3")
    done = run("generate", "--model", "tiny", "--gpus", "2x24GB", "--out", tmp_path / "out", *edits)
    assert done.returncode == 1
    assert "ulysses" in done.stderr
    assert not (tmp_path / "out").exists()


def test_generate_writes_nothing_that_cannot_fit(tmp_path: Path):
    """32.8 billion parameters in bf16 and a KV cache do not fit one GPU of 24 GB, whatever is offloaded."""
    asked = ("generate", "--model", "Qwen/Qwen3-32B", "--gpus", "1x24GB", "--out", tmp_path / "out")
    done = run(*asked)
    assert done.returncode == 1
    assert "memory" in done.stderr
    assert not (tmp_path / "out").exists()


def test_generate_asks_before_it_replaces(tmp_path: Path):
    first = run("generate", "--model", "Qwen/Qwen3-0.6B", "--gpus", "1x24GB", "--out", tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.split() == [str(tmp_path / n) for n in ("run.yaml", "run.sh", "verl-wizard.yaml")]
    (tmp_path / "run.yaml").write_text("mine")
    again = ("generate", "--model", "Qwen/Qwen3-0.6B", "--gpus", "1x24GB", "--out", tmp_path)
    assert run(*again).returncode == 1
    assert (tmp_path / "run.yaml").read_text() == "mine"
    assert run(*again, "--overwrite").returncode == 0
    assert (tmp_path / "run.yaml.bak").read_text() == "mine"


def test_a_training_repository_may_have_folders_of_our_names(tmp_path: Path):
    for name in ("screens", "generators", "wizard"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    script = Path(sys.executable).with_name("verl-wizard")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    # The entry point finds `wizard` itself, whatever PYTHONPATH says of the others.
    (tmp_path / "wizard" / "__init__.py").unlink()
    (tmp_path / "wizard").rmdir()
    done = subprocess.run(
        [script, "generate", "--model", "Qwen/Qwen3-0.6B", "--gpus", "1x24GB", "--out", tmp_path / "out"],
        capture_output=True, text=True, env=environment, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m wizard explain | head -1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("id ")
    assert done.stderr == ""


def test_an_unexpected_error_is_one_line_with_the_logs_path(tmp_path: Path):
    code = (
        "import sys, wizard.cli as c, wizard.commands.explain as e\n"
        "def boom(a): raise RuntimeError('kaputt')\n"
        "e.run = boom\n"
        "sys.exit(c.main(['explain']))"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    log = tmp_path / "verl-wizard" / "error.log"
    assert done.returncode == 1
    assert done.stderr == f"verl-wizard: unexpected RuntimeError: kaputt; the traceback is in {log}\n"
    assert "kaputt" in log.read_text()


def test_the_wizard_needs_a_terminal(tmp_path: Path):
    done = run(cwd=tmp_path)
    assert done.returncode == 2
    assert "generate" in done.stderr


def test_json_is_json(tmp_path: Path):
    for arguments in (
        ("inspect", "tiny", "--json"),
        ("check", "--json", "--", "actor_rollout_ref.rollout.name=vllm"),
        ("estimate", "--model", "tiny", "--gpus", "2x24GB", "--json"),
    ):
        json.loads(run(*arguments, cwd=tmp_path).stdout)


def test_hostile_names_neither_run_nor_steer_the_terminal(tmp_path: Path):
    name = "\x1b]0;owned\x07$(touch owned)\n[bold]x"
    done = run("inspect", name, cwd=tmp_path)
    assert done.returncode == 1
    assert "\x1b" not in done.stderr
    assert list(tmp_path.iterdir()) == []
