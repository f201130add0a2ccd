"""Recorded schemas, older releases' names, and the verl that the target interpreter has."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wizard.cli import main
from wizard.plan import Plan
from wizard.plan_file import load_plan
from wizard.probe.machine import parse_machine
from wizard.starter import starter_plan
from wizard.verl.export import plan_to_config, plan_to_overrides
from wizard.verl.importer import config_to_plan
from wizard.verl.schema import SCHEMAS, SchemaError, extracted_path, known_versions, load_schema, recorded_version
from wizard.verl.target import verl_version_of
from wizard.verl.versions import from_version, to_version

OLDER = ("0.6.1", "0.7.1", "0.8.0")


@pytest.mark.verl
def test_the_recorded_schema_is_what_the_installed_verl_gives(verl_config_folder: Path):
    from wizard.verl.extract import extract

    package = verl_config_folder.parents[1]
    version = importlib.metadata.version("verl")
    recorded = json.loads((SCHEMAS / f"{version}.json").read_bytes())
    assert json.loads(json.dumps(extract(package, version))) == recorded


@pytest.mark.verl
def test_dataclass_fields_are_those_that_verl_builds(verl_config_folder: Path):
    """The fields were read from source; verl's own classes, imported in a process of their own, tell the same names."""
    code = (
        "import dataclasses, importlib, json, sys\n"
        "def names(t):\n"
        "    module, _, name = t.rpartition('.')\n"
        "    return sorted(f.name for f in dataclasses.fields(getattr(importlib.import_module(module), name))\n"
        "                  if not f.name.startswith('_'))\n"
        "print('ANSWER' + json.dumps({t: names(t) for t in json.loads(sys.argv[1])}))\n"
    )
    targets = [
        f"verl.workers.config.{name}"
        for name in ("FSDPActorConfig", "FSDPEngineConfig", "FSDPCriticConfig", "RolloutConfig", "HFModelConfig",
                     "FSDPOptimizerConfig")
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(targets)], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    theirs = json.loads(done.stdout.rpartition("ANSWER")[2])
    recorded = json.loads((SCHEMAS / "0.9.1.json").read_bytes())["dataclasses"]
    ours = {target: sorted(recorded[target]) for target in targets if target in recorded}
    assert len(ours) >= 4
    assert ours == {target: theirs[target] for target in ours}


def test_versions_and_their_neighbours():
    assert known_versions() == ("0.6.1", "0.7.1", "0.8.0", "0.9.1")
    assert recorded_version("0.9.0") == "0.9.1"
    assert recorded_version("v0.8.0.post1") == "0.8.0"
    for wrong in ("0.3", "2.0", "", "new", "0"):
        with pytest.raises(SchemaError):
            load_schema(wrong)


MOVED = (
    # 0.9's key, the release, the key in that release's own configuration (read in its wheel's trainer/config)
    ("critic.fsdp.param_offload", (0, 7), "critic.model.fsdp_config.param_offload"),
    ("critic.fsdp.param_offload", (0, 8), "critic.fsdp.param_offload"),
    ("reward.reward_model.model_path", (0, 6), "reward_model.model.path"),
    ("reward.custom_reward_function.path", (0, 6), "custom_reward_function.path"),
    ("reward.custom_reward_function.path", (0, 7), "reward.custom_reward_function.path"),
    ("actor_rollout_ref.actor.optim.lr", (0, 6), "actor_rollout_ref.actor.optim.lr"),
)


@pytest.mark.parametrize(("key", "minor", "there"), MOVED)
def test_keys_that_moved(key: str, minor: tuple[int, int], there: str):
    assert to_version(key, minor) == there
    assert from_version(there, minor) == key
    version = next(v for v in known_versions() if load_schema(v).minor == minor)
    assert there in load_schema(version)


PLANS = [(algorithm, strategy) for algorithm in ("grpo", "ppo") for strategy in ("fsdp", "fsdp2")]


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    machine = parse_machine("8x80GB,cc9.0")
    edits = {
        "fsdp": [("actor.strategy", "fsdp"), ("actor.ulysses_size", "2"), ("actor.wrap_classes", "Qwen2DecoderLayer"),
                 ("actor.master_dtype", "bf16"), ("actor.entropy_chunking", "true"), ("model.lora_rank", "16")],
        "fsdp2": [("actor.offload_policy", "true"), ("actor.reduce_dtype", "bf16"), ("batches.dynamic", "false"),
                  ("actor.entropy_checkpointing", "true"), ("model.attention", "sdpa")],
    }  # fmt: skip
    return [
        starter_plan("Qwen/Qwen2.5-7B-Instruct", machine, algorithm, edits[strategy])  # type: ignore[arg-type]
        for algorithm, strategy in PLANS
    ]


@pytest.mark.parametrize("version", OLDER)
def test_older_releases_get_only_keys_that_they_know(version: str, plans: list[Plan]):
    schema = load_schema(version)
    for plan in plans:
        overrides = plan_to_overrides(plan.replace("target.verl_version", version))
        assert overrides
        assert [key for key in overrides if not schema.knows(key)] == []
        config = plan_to_config(plan.replace("target.verl_version", version))
        assert config.version == version
        assert (config.unknown_keys(), config.faults) == ((), ())


@pytest.mark.parametrize("version", OLDER)
def test_older_releases_read_the_same_settings(version: str, plans: list[Plan]):
    """What the Plan says stands where that release's workers look for it."""
    for plan in plans:
        config = plan_to_config(plan.replace("target.verl_version", version))
        actor = "actor_rollout_ref.actor"
        assert config.get(f"{actor}.strategy") == plan.actor.strategy
        assert config.get(f"{actor}.fsdp_config.offload_policy") == plan.actor.offload_policy
        assert config.get(f"{actor}.ulysses_sequence_parallel_size") == plan.actor.ulysses_size
        assert config.get("actor_rollout_ref.model.lora_rank") == plan.model.lora_rank
        if plan.algorithm.name == "ppo":
            block = "critic.fsdp" if config.schema.minor >= (0, 8) else "critic.model.fsdp_config"
            assert config.get(f"{block}.offload_policy") == plan.actor.offload_policy
            assert config.get("critic.strategy") == plan.actor.strategy


@pytest.mark.parametrize("version", [*OLDER, "0.9.1"])
def test_a_plan_written_for_a_release_comes_back(version: str, plans: list[Plan]):
    for plan in plans:
        aimed = plan.replace("target.verl_version", version)
        again = config_to_plan(plan_to_config(aimed), Plan(machine=aimed.machine, architecture=aimed.architecture))
        assert plan_to_overrides(again) == plan_to_overrides(aimed)
        assert again.actor == aimed.actor
        assert again.extra_overrides == ()


def other_verl(folder: Path, version: str, source: Path) -> str:
    """Make an interpreter whose verl is another release: this one's packages behind a changed copy of verl."""
    site = folder / "site"
    shutil.copytree(
        source, site / "verl", ignore=shutil.ignore_patterns("*.so", "__pycache__", "models", "third_party")
    )
    (site / "verl" / "version" / "version").write_text(version)
    (site / f"verl-{version}.dist-info").mkdir()
    (site / f"verl-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n"
    )
    trainer = site / "verl" / "trainer" / "config" / "ppo_trainer.yaml"
    text = trainer.read_text(encoding="utf-8")
    trainer.write_text(text.replace("\ntrainer:\n", "\ntrainer:\n\n  invented_here: 5\n", 1), encoding="utf-8")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.verl
def test_an_unrecorded_verl_in_the_target_is_asked_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verl_config_folder: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    load_schema.cache_clear()
    python = other_verl(tmp_path, "0.10.1", verl_config_folder.parents[1])
    with pytest.raises(SchemaError):
        load_schema("0.10.1")
    config = tmp_path / "x.yaml"
    config.write_text("trainer: {invented_here: 6}\n")
    main(["check", "--json", str(config)])
    assert [f["id"] for f in json.loads(capsys.readouterr().out)["findings"] if f["field"] == "trainer.invented_here"]
    main(["check", "--json", "--python", python, str(config)])
    streams = capsys.readouterr()
    assert streams.err == ""
    assert [f for f in json.loads(streams.out)["findings"] if f["field"] == "trainer.invented_here"] == []
    assert load_schema("0.10.1").node("trainer.invented_here") == 5
    # Asked once: the release is now known without its interpreter.
    assert extracted_path("0.10.1").exists()
    out = tmp_path / "out"
    assert main(["generate", "--model", "tiny", "--gpus", "2x24GB", "--python", python, "--out", str(out)]) == 0
    assert load_plan(out / "verl-wizard.yaml").target.verl_version == "0.10.1"
    assert "verl 0.10.1" in (out / "run.yaml").read_text(encoding="utf-8")
    load_schema.cache_clear()


@pytest.mark.verl
def test_a_recorded_release_costs_no_extraction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert verl_version_of("") == importlib.metadata.version("verl")
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_gives_no_answer_is_told_and_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = tmp_path / "x.yaml"
    config.write_text("trainer: {nnodes: 1}\n")
    assert main(["check", "--python", str(tmp_path / "nowhere"), str(config)]) == 1
    streams = capsys.readouterr()
    assert "nowhere cannot be started" in streams.err
    assert "verl 0.9.1: " in streams.out


def test_a_broken_record_of_a_release_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_schema.cache_clear()
    for content in (b"", b"{}", b"[1]", b"\xff", b'{"version": 1'):
        path = extracted_path("0.9.0")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        assert load_schema("0.9.0").version == "0.9.1"
        load_schema.cache_clear()


def test_names_of_releases_stay_in_their_folder():
    assert extracted_path("../../x").parent == extracted_path("0.9.0").parent
