"""How a captured script may end, what it may leave behind, and the command around it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil
import pytest

from wizard.cli import main
from wizard.verl.capture import CaptureError, capture

MAIN = "verl.trainer.main_ppo"
TRAIN = f"python3 -m {MAIN} actor_rollout_ref.rollout.name=vllm"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.sh"


def left_over(script: Path) -> list[psutil.Process]:
    """Return processes that still run in the script's folder; a killed one needs a moment to be gone."""
    deadline = time.monotonic() + 5
    while (found := running_in(script.parent)) and time.monotonic() < deadline:
        psutil.wait_procs(found, timeout=0.1)
    return found


def running_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.cwd() == str(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


@pytest.mark.parametrize(
    "background",
    [
        "while :; do :; done &",
        "( while :; do :; done & ) ; disown -a",
        "set -m; while :; do :; done & disown",
        "set -m; ( trap '' HUP TERM; while :; do :; done ) &",
    ],
)
def test_nothing_stays_behind_and_nothing_is_waited_for(background: str, script: Path):
    script.write_text(f"{background}\n{TRAIN}\n")
    assert capture(["bash", str(script)], 60).training is not None
    assert left_over(script) == []


def test_a_trainer_seen_before_the_time_is_up_counts(script: Path):
    script.write_text(f"{TRAIN} x=1\nwhile :; do :; done\n")
    training = capture(["bash", str(script)], 2).training
    assert training is not None
    assert training.argv[-1] == "x=1"
    assert left_over(script) == []


def test_a_script_that_waits_for_a_cluster_says_for_what(script: Path):
    script.write_text(f"until ray status --address h:1 | grep -q ready; do sleep 5; done\n{TRAIN}\n")
    with pytest.raises(CaptureError, match=r"it was stopped\. It last called: (ray status --address h:1|sleep 5)"):
        capture(["bash", str(script)], 2)
    assert left_over(script) == []


def test_arguments_come_through_unchanged(script: Path):
    words = ["a=two\nlines", "b=it's \"so\"", "c=über 日本", "d=$HOME", "e=*", "f=", "g=\t", "h=\\", "--i"]
    script.write_text(f'{TRAIN} "$@"\n')
    training = capture(["bash", str(script), *words], 30).training
    assert training is not None
    assert list(training.argv[-len(words) :]) == words


def test_bytes_that_are_no_text_come_through(script: Path, capsys: pytest.CaptureFixture[str]):
    script.write_bytes(TRAIN.encode() + b" 'trainer.project_name=\xff'\n")
    assert main(["capture", "--", "bash", str(script)]) == 1
    assert capsys.readouterr().out


def test_many_calls_before_the_trainer(script: Path):
    script.write_text(f"for i in $(seq 30); do git status; done\n{TRAIN}\n")
    calls = capture(["bash", str(script)], 60)
    assert calls.training is not None
    assert len(calls.others) == 30


def test_the_command_checks_what_the_script_gives(script: Path, capsys: pytest.CaptureFixture[str]):
    script.write_text(f"pip install x\nset -x\n{TRAIN} actor_rollout_ref.actor.grad_offload=true 2>&1\n{TRAIN} second=1\n")
    assert main(["capture", "--json", "--", "bash", str(script)]) == 1
    streams = capsys.readouterr()
    found = json.loads(streams.out)["findings"]
    assert "actor_rollout_ref.actor.grad_offload" in {finding["field"] for finding in found}
    assert "not run: pip install x" in streams.err
    assert "second=1" in streams.err


def test_a_file_beside_the_script_is_read_under_its_overrides(script: Path, capsys: pytest.CaptureFixture[str]):
    folder = script.parent / "job" / "conf"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("defaults: [ppo_trainer, _self_]\ndata: {train_batchsize: 3}\n")
    script.write_text(f"cd job\n{TRAIN} --config-dir conf --config-name=mine trainer.nnodes=1\n")
    assert main(["capture", "--json", "--", "bash", str(script)]) == 1
    fields = {finding["field"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert "data.train_batchsize" in fields


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hello\n", "started no verl trainer"),
        ("python3 -m verl.trainer.sft_trainer x=1\n", "started no verl trainer"),
        ("if\n", "before it called anything"),
        (f"{TRAIN} --config-dir nowhere --config-name x\n", "nowhere"),
    ],
)
def test_what_gives_nothing_to_check_exits_with_2(text: str, said: str, script: Path, capsys: pytest.CaptureFixture[str]):
    script.write_text(text)
    assert main(["capture", "--", "bash", str(script)]) == 2
    streams = capsys.readouterr()
    assert said in streams.err
    assert streams.out == ""


def test_a_script_that_is_not_there(script: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["capture", "--", "bash", str(script)]) == 2
    assert main(["capture", "--", str(script)]) == 2
    assert "run.sh" in capsys.readouterr().err


def test_help_says_what_runs(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["capture", "--help"])
    assert "nothing of the training starts" in " ".join(capsys.readouterr().out.split())
