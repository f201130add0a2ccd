"""`verl-wizard estimate` as people and scripts call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wizard.cli import main
from wizard.model.catalog import preset
from wizard.placing import parse_groups
from wizard.plan import Algorithm, Placement, Plan
from wizard.plan_file import FILE_NAME, plan_to_yaml

MODEL = "Qwen/Qwen2.5-7B-Instruct"


def estimate(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["estimate", *arguments, "--json"]) in (0, 1)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("arguments", "measured_gib"),
    [
        (("--tokens", "4096", "--micro-batches", "1"), 17.821),
        (("--tokens", "4096", "--micro-batches", "1", "--no-gradient-checkpointing"), 38.627),
        (("--tokens", "4096", "--micro-batches", "1", "--loss", "ce32"), 18.543),
        (("--tokens", "8192", "--micro-batches", "1", "--entropy", "eager"), 42.623),
        (("--tokens", "4096", "--micro-batches", "2"), 19.247),
        (("--tokens", "4096", "--micro-batches", "2", "--no-sync"), 43.666),
    ],
)
def test_shortcuts_give_the_measured_peaks(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], measured_gib: float
) -> None:
    found = estimate(capsys, "--model", MODEL, "--world-size", "8", "--strategy", "fsdp2", *arguments)
    update = found["phases"]["actor_update"]
    assert update["peak_allocated_bytes"] / 2**30 == pytest.approx(measured_gib, rel=0.01)
    assert sum(update["breakdown"].values()) == pytest.approx(update["peak_allocated_bytes"], abs=8)
    assert update["at"]
    assert found["host_bytes_per_node"] > 0


def test_a_plan_and_its_folder_give_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = Plan(architecture=preset(MODEL))
    (tmp_path / FILE_NAME).write_text(plan_to_yaml(plan))
    from_file = estimate(capsys, str(tmp_path / FILE_NAME), "--gpus", "8x80GB")
    assert from_file == estimate(capsys, str(tmp_path), "--gpus", "8x80GB")
    assert from_file["fits"] is True
    smaller = estimate(capsys, str(tmp_path), "--gpus", "8x80GB", "--set", "actor.fsdp_size=4")
    sizes = [each["phases"]["actor_update"]["breakdown"]["optimizer"] for each in (from_file, smaller)]
    assert sizes[1] == pytest.approx(2 * sizes[0])


def test_groups_of_roles_are_told_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    groups = parse_groups("actor+rollout+ref=1x7; critic=1x1")
    plan = Plan(architecture=preset(MODEL), algorithm=Algorithm(name="ppo"), placement=Placement(groups))
    (tmp_path / FILE_NAME).write_text(plan_to_yaml(plan))
    found = estimate(capsys, str(tmp_path), "--gpus", "8x80GB")
    trainers, critic = found["groups"]
    assert (critic["roles"], critic["nodes"], critic["gpus_per_node"]) == (["critic"], 1, 1)
    assert critic["phases"] == ["critic_update"]
    assert critic["needed_bytes"] == found["phases"]["critic_update"]["needed_bytes"]
    assert trainers["needed_bytes"] == max(found["phases"][name]["needed_bytes"] for name in trainers["phases"])
    # 16 bytes a parameter of a 7B model are 105 GiB on one GPU, 15 on each of seven.
    assert (trainers["fits"], critic["fits"], found["fits"]) == (True, False, False)
    main(["estimate", str(tmp_path), "--gpus", "8x80GB"])
    assert "critic (1 × 1): " in capsys.readouterr().out


def test_what_does_not_fit_exits_1_and_offers_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--model", MODEL, "--gpus", "2x48GB"]) == 1
    text = capsys.readouterr().out
    assert "does not fit" in text
    assert "train LoRA adapters" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "either a Plan"),
        (["--model", MODEL, "--tokens", "0"], "--tokens 0"),
        (["--model", MODEL, "--set", "actor.reduce"], "write FIELD=VALUE"),
        (["--model", MODEL, "--set", "actor.reduse_dtype=fp32"], "Did you mean actor.reduce_dtype?"),
        (["--model", MODEL, "--gpus", "eight"], "eight"),
        (["/no/such/plan.yaml"], "/no/such/plan.yaml"),
    ],
)
def test_usage_errors_say_what_is_wrong(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert main(["estimate", *arguments]) == 2
    assert told in capsys.readouterr().err
