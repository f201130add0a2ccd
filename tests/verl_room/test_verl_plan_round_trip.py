"""A Plan written as verl's keys and read back is the same Plan; a foreign configuration loses nothing on the way."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from wizard.facts import Machine
from wizard.placing import parse_groups
from wizard.plan import Algorithm, Placement, Plan, PlanError, field_specs
from wizard.verl.export import plan_to_config, plan_to_overrides
from wizard.verl.importer import config_to_plan, import_argv, import_file, plan_from_file
from wizard.verl.reader import ReadError
from wizard.verl.schema import known_versions, load_schema

MACHINE = Machine(gpus_per_node=8)
BASE = Plan(machine=MACHINE, algorithm=Algorithm(name="ppo"))
NOT_WRITTEN = {
    "model.revision": "verl has no key for it",
    "model.lora_alpha": "not written without LoRA",
    "ref.no_sync": "a reference has no gradients",
    "critic.entropy_chunking": "a critic has no entropy",
    "critic.entropy_checkpointing": "a critic has no entropy",
    "batches.micro_batch_size_per_gpu": "not written with dynamic batching",
    "batches.log_prob_micro_batch_size_per_gpu": "not written with dynamic batching",
    "batches.critic_micro_batch_size_per_gpu": "not written with dynamic batching",
}
SINCE_0_9 = {"actor.no_sync", "critic.no_sync"}
EDITED = [
    path
    for path in field_specs()
    if path.split(".")[0] not in ("target", "machine") and path not in NOT_WRITTEN and path != "placement.groups"
]


def other_value(path: str) -> Any:
    spec = field_specs()[path]
    if spec.choices:
        return next(choice for choice in spec.choices if choice != spec.default)
    kinds: dict[Any, Any] = {
        bool: lambda v: not v,
        int: lambda v: v + 3,
        float: lambda v: v + 0.25,
        str: lambda v: "zz",
    }
    return kinds[spec.type](spec.default) if spec.type in kinds else ("A", "B")


@pytest.mark.parametrize(
    ("version", "groups"),
    [
        ("0.9.1", "actor+ref+critic=2x4; rollout=2x4"),
        ("0.9.1", "actor+ref+critic=2x8; rollout=1x8; reward=1x4"),
        *((version, "actor+rollout+ref+critic=2x6; reward=2x2") for version in known_versions()),
    ],
)
def test_pools_of_the_configuration_come_back_as_groups(version: str, groups: str):
    nodes, gpus = (4, 8) if "1x8" in groups else (2, 8)
    switch = "reward_model.enable" if version == "0.6.1" else "reward.reward_model.enable"
    plan = dataclasses.replace(
        BASE.replace("target.verl_version", version),
        machine=Machine(nodes=nodes, gpus_per_node=gpus),
        placement=Placement(parse_groups(groups)),
        extra_overrides=((switch, True),) if "reward" in groups else (),
    )
    read = config_to_plan(plan_to_config(plan), Plan())
    assert read.placement == plan.placement
    assert (read.machine.nodes, read.machine.gpus_per_node) == (nodes, gpus)
    assert read.extra_overrides == plan.extra_overrides, "what the groups say is kept nowhere else"
    assert plan_to_overrides(read) == plan_to_overrides(plan)


@pytest.mark.parametrize("version", known_versions())
def test_every_field_survives_the_way_through_verls_keys(version: str):
    lost = []
    for path in EDITED:
        if path in SINCE_0_9 and version != "0.9.1":
            continue
        try:
            plan = BASE.replace(path, other_value(path))
        except PlanError:
            plan = BASE
        plan = dataclasses.replace(plan, target=dataclasses.replace(plan.target, verl_version=version))
        if config_to_plan(plan_to_config(plan), Plan(machine=MACHINE)) != plan:
            lost.append(path)
    assert lost == []


@pytest.mark.parametrize("version", known_versions())
def test_a_plan_writes_only_keys_its_release_has(version: str):
    schema = load_schema(version)
    plan = dataclasses.replace(BASE, target=dataclasses.replace(BASE.target, verl_version=version))
    for path in EDITED:
        changed = plan if path.startswith("ref.") else plan.replace(path, other_value(path))
        assert [key for key in plan_to_overrides(changed, schema) if not schema.knows(key)] == [], path


@pytest.mark.parametrize("version", known_versions())
def test_a_composed_dump_is_known_for_its_release_and_silent(version: str, tmp_path: Path):
    """`.hydra/config.yaml` of a run with nothing but defaults."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(load_schema(version).defaults))
    found = import_file(path)
    assert found.config.version == version
    assert found.config.unknown_keys() == ()
    assert found.config.differences() == {}


def test_where_a_configuration_is_silent_verls_defaults_hold():
    plan = config_to_plan(import_argv(["algorithm.adv_estimator=grpo"]).config, Plan())
    schema = load_schema()
    assert plan.algorithm.use_kl_loss is False
    assert plan.rollout.n == schema.node("actor_rollout_ref.rollout.n")
    assert plan.rollout.tensor_parallel_size == schema.node("actor_rollout_ref.rollout.tensor_model_parallel_size")
    assert plan.machine.gpus_per_node == schema.node("trainer.n_gpus_per_node")


def test_what_the_plan_has_no_word_for_is_kept_and_written_again():
    argv = [
        "algorithm.adv_estimator=gdpo", "actor_rollout_ref.rollout.name=vllm", "data.shuffle=false",
        "data.train_files=['/a.parquet','/b.parquet']", "+actor_rollout_ref.actor.mine=1",
    ]  # fmt: skip
    plan = config_to_plan(import_argv(argv).config, Plan())
    written = plan_to_overrides(plan)
    assert written["algorithm.adv_estimator"] == "gdpo"
    assert written["data.shuffle"] is False
    assert list(written["data.train_files"]) == ["/a.parquet", "/b.parquet"]
    assert written["actor_rollout_ref.actor.mine"] == 1


def test_a_strategy_that_0_7_reads_in_two_places_stays_one():
    config = import_argv(["actor_rollout_ref.actor.strategy=fsdp2", "critic.model.fsdp_config.fsdp_size=2",
                          "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2"]).config  # fmt: skip
    assert config.version == "0.7.1"
    plan = config_to_plan(config, Plan()).replace("actor.strategy", "fsdp")
    written = plan_to_overrides(plan)
    places = [key for key in written if key.startswith("actor_rollout_ref.actor") and key.endswith("strategy")]
    assert {written[key] for key in places} <= {"fsdp"}


def test_the_owners_ulysses_key_wins_above_one():
    key = "actor_rollout_ref.actor.{}ulysses_sequence_parallel_size={}"
    both = [key.format("", 2), key.format("fsdp_config.", 4)]
    assert config_to_plan(import_argv(both).config, Plan()).actor.ulysses_size == 2
    assert config_to_plan(import_argv(both[1:]).config, Plan()).actor.ulysses_size == 4


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--config-name=mine", "a.b=1"], "without --config-dir"),
        (["--config-dir", "/no/such/folder", "a.b=1"], "no such folder"),
    ],
)
def test_a_file_that_hydra_would_not_find_is_said(argv: list[str], said: str):
    with pytest.raises(ReadError, match=said):
        import_argv(argv)


def test_a_foreign_file_is_never_the_one_that_is_saved_to(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text("defaults: [ppo_trainer, _self_]\ntrainer: {n_gpus_per_node: 4}\n")
    plan, target = plan_from_file(path)
    assert plan.machine.gpus_per_node == 4
    assert target == tmp_path / "verl-wizard.yaml"
