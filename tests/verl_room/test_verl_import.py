"""The forms in which people have a configuration: folders, Hydra's records, argument lists, partial files."""

from __future__ import annotations

from pathlib import Path

import pytest

from wizard.plan import Plan
from wizard.plan_file import FILE_NAME, plan_to_yaml
from wizard.verl.importer import config_to_plan, import_argv, import_file, plan_from_file
from wizard.verl.reader import ReadError

A = "actor_rollout_ref.actor"


def test_a_folder_gives_its_plan_before_anything_else(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("trainer: {nnodes: 3}\n")
    assert import_file(tmp_path).config.get("trainer.nnodes") == 3
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("- trainer.nnodes=4\n")
    assert import_file(tmp_path).config.get("trainer.nnodes") == 4
    (tmp_path / FILE_NAME).write_text(plan_to_yaml(Plan()))
    found = import_file(tmp_path)
    assert (found.kind, found.plan) == ("plan", Plan())
    assert plan_from_file(tmp_path) == (Plan(), tmp_path / FILE_NAME)


def test_a_foreign_file_is_never_the_one_saved_to(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text("trainer: {nnodes: 3}\n")
    plan, saved = plan_from_file(path)
    assert plan.machine.nodes == 3
    assert saved == tmp_path / FILE_NAME


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.nnodes=2"],
        ["python3", "-m", "verl.trainer.main_ppo", "trainer.nnodes=2"],
        ["/opt/conda/bin/python", "-u", "-m", "verl.trainer.main_ppo", "--config-name", "ppo_trainer", "trainer.nnodes=2"],
        ["python", "verl/trainer/main_ppo.py", "trainer.nnodes=2", "-cn=ppo_trainer"],
        ["torchrun", "--nproc_per_node", "8", "-m", "verl.trainer.main_ppo", "--cfg", "job", "trainer.nnodes=2"],
    ],
)
def test_argument_lists(words: list[str]):
    config = import_argv(words).config
    assert config.get("trainer.nnodes") == 2
    assert config.faults == ()
    assert dict(config.given) == {"trainer.nnodes": 2}


@pytest.mark.parametrize("flags", [["--config-dir", "conf", "--config-name", "run"], ["-cd=conf", "-cn=run.yaml"],
                                   ["--config-path=conf", "--config-name=run"]])  # fmt: skip
def test_a_named_file_lies_under_the_overrides(flags: list[str], tmp_path: Path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "run.yaml").write_text(
        "defaults:\n  - ppo_trainer\n  - _self_\nhydra: {searchpath: [pkg://verl.trainer.config]}\n"
        "trainer:\n  nnodes: 5\n  total_epochs: 3\n"
    )
    config = import_argv([*flags, "trainer.nnodes=2"], folder=tmp_path).config
    assert (config.get("trainer.nnodes"), config.get("trainer.total_epochs")) == (2, 3)
    assert config.origin("trainer.total_epochs").endswith("run.yaml:7")
    assert config.origin("trainer.nnodes") == "trainer.nnodes=2"
    assert config.unknown_keys() == ()


def test_origins_of_a_list_of_overrides(tmp_path: Path):
    path = tmp_path / "overrides.yaml"
    path.write_text("- data.train_batch_size=4\n# more\n- trainer.nope=1\n- '=x'\n- a,b=1\n- data.seed=1,2\n")
    config = import_file(path).config
    assert config.origin("data.train_batch_size") == f"{path}:1"
    assert sorted((fault.origin, fault.kind) for fault in config.faults) == [
        (f"{path}:3", "not-in-struct"), (f"{path}:4", "not-in-struct"), (f"{path}:5", "grammar"), (f"{path}:6", "sweep"),
    ]  # fmt: skip


def test_a_list_that_holds_more_than_texts_is_refused(tmp_path: Path):
    path = tmp_path / "overrides.yaml"
    path.write_text("- a=1\n- {b: 2}\n")
    with pytest.raises(ReadError, match="texts only"):
        import_file(path)


def test_groups_are_told_apart_from_keys():
    config = import_argv(["model_engine=megatron", "trainer.nnodes=1"]).config
    assert dict(config.groups) == {"model_engine": "megatron"}
    assert config.faults == ()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("critic: {fsdp: {param_offload: true}}\n", "0.9.1"),
        ("critic: {model: {fsdp_config: {param_offload: true}}}\n", "0.7.1"),
        ("trainer: {nnodes: 1}\n", "0.9.1"),
    ],
)
def test_the_release_is_guessed_from_keys_that_come_and_go(text: str, version: str, tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    assert import_file(path).config.version == version
    assert import_file(path, "0.8.0").config.version == "0.8.0"


def test_a_partial_file_with_interpolations_and_dotted_values(tmp_path: Path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "n: 4\nactor_rollout_ref:\n  rollout: {n: '${n}', name: vllm}\n"
        "  actor: {ppo_mini_batch_size: '${data.train_batch_size}', use_dynamic_bsz: true}\ndata: {train_batch_size: 32}\n"
    )
    found = import_file(path)
    plan = config_to_plan(found.config, Plan())
    assert (plan.rollout.n, plan.batches.mini_batch_size, plan.batches.dynamic) == (4, 32, True)
    assert plan.extra_overrides == (("n", 4),)


def test_interpolations_without_end_are_given_up(tmp_path: Path):
    path = tmp_path / "x.yaml"
    doubles = "".join(f"a{i}: '${{a{i + 1}}}${{a{i + 1}}}'\n" for i in range(60))
    path.write_text(f"{doubles}a60: {'x' * 5000}\nb: '${{c}}'\nc: '${{b}}'\nd: {{e: '${{d}}'}}\nf: '${{..up}}'\n")
    config = import_file(path).config
    for key in ("a0", "a45", "b", "c", "d", "d.e", "f"):
        assert config.get(key, "nothing") == "nothing"
    assert config.get("a59") == "x" * 10000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config-name", "mine", "trainer.nnodes=2"], "without --config-dir"),
        (["--config-dir", "nowhere", "trainer.nnodes=2"], "no such folder"),
        (["--config-path", "nowhere", "--config-name", "x"], "no such folder"),
    ],
)
def test_files_that_hydra_would_not_find(words: list[str], said: str, tmp_path: Path):
    with pytest.raises(ReadError, match=said):
        import_argv(words, folder=tmp_path)
