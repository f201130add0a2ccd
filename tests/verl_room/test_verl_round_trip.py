"""Plan → verl's keys → Plan, foreign configurations as Plans, and random Plans before verl itself."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from generators import render
from wizard.facts import Machine
from wizard.findings import Severity, Stage
from wizard.model.catalog import preset
from wizard.model.resolve import resolve_model
from wizard.model.tiny import ensure_tiny
from wizard.plan import Fsdp, Plan, field_specs
from wizard.probe.machine import parse_machine
from wizard.rules import check_plan
from wizard.verl.config import Assignment, VerlConfig
from wizard.verl.export import equal, plan_to_config, plan_to_overrides
from wizard.verl.importer import config_to_plan, import_argv, import_file
from wizard.verl.keys import exported_keys
from wizard.verl.overrides import override_text
from wizard.verl.schema import load_schema

CASES = Path(__file__).parents[1] / "cases" / "verl_example_overrides.json"
EXAMPLES = json.loads(CASES.read_text(encoding="utf-8"))
SCHEMA = load_schema("0.9.1")
NOT_VERLS = ("target", "machine", "placement")
"""Sections that verl's configuration does not hold, or only in part."""


def value_of(path: str) -> st.SearchStrategy[Any]:
    found = field_specs()[path]
    if found.choices:
        return st.sampled_from(found.choices)
    if found.type is bool:
        return st.booleans()
    if found.type is int:
        lowest = int(found.minimum) if found.minimum is not None else -1
        return st.sampled_from([max(lowest, n) for n in (1, 2, 4, 8, 64, 4096)])
    if found.type is float:
        return st.sampled_from((0.0, 0.001, 0.5, 1e-6, 1.0))
    if typing.get_origin(found.type) is tuple:
        return st.sampled_from(((), ("Qwen2DecoderLayer",), ("Qwen2DecoderLayer", "Qwen2MLP")))
    return st.sampled_from(("a", "/data/it's x", "über/${oc.env:HOME}", "1", "true", "null", "[x]", " y ")).filter(
        lambda text: "${" not in text
    )


PATHS = [path for path in field_specs() if path.split(".")[0] not in (*NOT_VERLS, "ref", "critic")]
ROLE_PATHS = [path for path in field_specs() if path.split(".")[0] in ("ref", "critic")]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    plan = Plan(machine=parse_machine("8x80GB"), architecture=preset("Qwen/Qwen2.5-7B-Instruct"))
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=12, unique=True)):
        plan = plan.replace(path, draw(value_of(path)))
    for path in draw(st.lists(st.sampled_from(ROLE_PATHS), max_size=3, unique=True)):
        plan = plan.replace(path, draw(value_of(path)))
    return plan


def visible(plan: Plan) -> Plan:
    """Return the Plan without what its files do not hold: documented exceptions of the way back.

    Fields of roles the algorithm does not have, of the batching that is off, `revision` (verl has no such key), the
    KL weight without a KL loss, LoRA's alpha without LoRA, and roles that say what the actor says.
    """
    keep = {entry.path for entry in exported_keys() if entry.path and entry.applies(plan)}
    result = plan
    for section in ("model", "algorithm", "data", "batches", "rollout", "trainer"):
        owner = getattr(plan, section)
        blank = {f.name: f.default for f in dataclasses.fields(owner) if f"{section}.{f.name}" not in keep}
        result = dataclasses.replace(result, **{section: dataclasses.replace(owner, **blank)})
    if result.model.critic_id == result.model.id:
        result = result.replace("model.critic_id", "")
    longest = plan.data.max_prompt_length + plan.data.max_response_length
    if result.rollout.max_model_len == longest:
        result = result.replace("rollout.max_model_len", 0)
    return dataclasses.replace(result, ref=role(plan, "ref", keep), critic=role(plan, "critic", keep))


def role(plan: Plan, name: str, keep: set[str]) -> Fsdp | None:
    if name not in plan.roles:
        return None
    own = plan.fsdp(name)  # type: ignore[arg-type]
    hidden = {f.name: getattr(plan.actor, f.name) for f in dataclasses.fields(Fsdp) if f"{name}.{f.name}" not in keep}
    own = dataclasses.replace(own, **hidden)
    return None if own == plan.actor else own


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.reuse, Phase.generate])
@given(plans())
def test_a_plan_comes_back_from_its_keys(plan: Plan):
    base = Plan(target=plan.target, machine=plan.machine, architecture=plan.architecture)
    again = config_to_plan(plan_to_config(plan), base)
    assert visible(again) == visible(plan)
    assert again.extra_overrides == ()
    assert plan_to_overrides(again) == plan_to_overrides(plan)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.reuse, Phase.generate])
@given(plans())
def test_a_plan_comes_back_from_its_command_line(plan: Plan):
    argv = [override_text(key, value, "++") for key, value in plan_to_overrides(plan).items()]
    found = import_argv(argv)
    assert found.config.faults == ()
    assert plan_to_overrides(config_to_plan(found.config, Plan(machine=plan.machine))) == plan_to_overrides(plan)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.reuse, Phase.generate])
@given(plans())
def test_a_plan_taken_for_itself_stays_the_same(plan: Plan):
    """`check --fix` of a Plan that needs no fix changes nothing, whatever its files do not hold."""
    again = config_to_plan(plan_to_config(plan), plan)
    assert plan_to_overrides(again) == plan_to_overrides(plan)
    assert again.machine == plan.machine
    assert again.model.critic_id == plan.model.critic_id


def test_the_generated_file_gives_the_same_plan(tmp_path: Path):
    plan = Plan(machine=parse_machine("8x80GB"), extra_overrides=(("data.seed", 3), ("trainer.val_only", True)))
    path = tmp_path / "x.yaml"
    path.write_text(render(plan)["run.yaml"], encoding="utf-8")
    again = config_to_plan(import_file(path).config, Plan(machine=plan.machine))
    assert visible(again) == visible(plan)
    assert again.extra_overrides == plan.extra_overrides


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["script"])
def test_a_launch_script_means_the_same_as_a_plan(example: dict[str, Any]):
    """Every key that verl's own example gives has the same value in what the Plan of it writes."""
    config = import_argv(example["overrides"]).config
    plan = config_to_plan(config, Plan())
    written = plan_to_config(plan)
    lost = {
        key: (config.get(key), written.get(key))
        for key in config.given
        if not idle(key, config)
        and not means_the_same(key, config.get(key, config.raw(key)), written.get(key, written.raw(key)))
    }
    assert lost == {}


def means_the_same(key: str, one: Any, other: Any) -> bool:
    """verl takes `bfloat16` for `bf16`, and one file for a list of it."""
    words = {"bfloat16": "bf16", "float32": "fp32"}
    if key in ("data.train_files", "data.val_files"):
        one, other = (value if isinstance(value, list) else [value] for value in (one, other))
    return equal(words.get(str(one), one), words.get(str(other), other))


def idle(key: str, config: VerlConfig) -> bool:
    """Whether verl does not look at a key in this run: the other way of batching, a KL weight without its loss."""
    dynamic = config.get("actor_rollout_ref.actor.use_dynamic_bsz")
    return (
        ("micro_batch_size_per_gpu" in key and dynamic)
        or (key.startswith("critic.") and config.get("algorithm.adv_estimator") != "gae")
        or ("max_token_len_per_gpu" in key and not dynamic)
        or (key.startswith("actor_rollout_ref.ref.") and not uses_ref(config))
        or (key.endswith("kl_loss_coef") and not config.get("actor_rollout_ref.actor.use_kl_loss"))
        or (key.endswith("lora_alpha") and not config.get("actor_rollout_ref.model.lora_rank"))
    )


def uses_ref(config: VerlConfig) -> bool:
    return bool(config.get("algorithm.use_kl_in_reward") or config.get("actor_rollout_ref.actor.use_kl_loss"))


def test_what_a_foreign_file_leaves_out_is_verls_default():
    """verl's KL loss is off, its n is 1 and its strategy fsdp; the Plan's own defaults differ."""
    plan = config_to_plan(VerlConfig(SCHEMA, [Assignment("actor_rollout_ref.rollout.name", "vllm")]), Plan())
    assert (plan.algorithm.use_kl_loss, plan.rollout.n, plan.actor.strategy) == (False, 1, "fsdp")
    assert plan.batches.train_batch_size == 1024
    assert plan.algorithm.name == "ppo"
    assert plan.extra_overrides == ()


def test_two_keys_of_one_field_that_differ_are_both_kept():
    rollout, ref = (f"actor_rollout_ref.{role}.log_prob_micro_batch_size_per_gpu" for role in ("rollout", "ref"))
    said = {rollout: 4, ref: 16, "actor_rollout_ref.actor.use_kl_loss": True, "algorithm.adv_estimator": "grpo"}
    plan = config_to_plan(VerlConfig(SCHEMA, [Assignment(key, value) for key, value in said.items()]), Plan())
    written = plan_to_config(plan)
    assert (written.get(rollout), written.get(ref)) == (4, 16)


def test_a_full_snapshot_floods_nothing(tmp_path: Path):
    """`.hydra/config.yaml` of a run holds all of verl's keys; only what differs from the defaults counts."""
    overrides = next(example for example in EXAMPLES if example["verl_0_9_1"] == "accepts")["overrides"]
    config = import_argv(overrides).config
    folder = tmp_path / ".hydra"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config.to_container(resolve=False)), encoding="utf-8")
    snapshot = import_file(folder / "config.yaml").config
    assert snapshot.to_container(resolve=False) == config.to_container(resolve=False)
    assert len(snapshot.given) > 500
    short, full = config_to_plan(config, Plan()), config_to_plan(snapshot, Plan())
    assert visible(full) == visible(short)
    assert set(dict(full.extra_overrides)) - set(dict(short.extra_overrides)) <= {"data.filter_overlong_prompts"}
    from wizard.rules import Facts, check_config

    of_short = {(f.id, f.field) for f in check_config(config, Facts())}
    of_full = {(f.id, f.field) for f in check_config(snapshot, Facts())}
    assert of_full == of_short


class Verl:
    """verl itself in a process of its own (`tests/rules/verl_oracle.py`)."""

    def __init__(self, log: Path) -> None:
        script = Path(__file__).parents[1] / "rules" / "verl_oracle.py"
        self.log = log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        assert "ready" in self.answer(), log.read_text()[-3000:]

    def ask(self, **question: Any) -> dict[str, str]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, Path(self.log.name).read_text()[-3000:]
        found: dict[str, str] = json.loads(line)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.log.close()


@pytest.fixture(scope="module")
def verl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verl]:
    ensure_tiny(sys.executable)
    found = Verl(tmp_path_factory.mktemp("verl") / "log")
    yield found
    found.close()


@st.composite
def sound_plans(draw: st.DrawFn) -> Plan:
    """Plans whose numbers have a chance to divide; what our rules call an early error is left out."""
    plan = Plan(
        machine=Machine(nodes=draw(st.sampled_from((1, 2))), gpus_per_node=draw(st.sampled_from((1, 2, 4, 8)))),
        architecture=resolve_model("tiny"),
    ).replace("rollout.engine", "sglang")
    plan = plan.replace("algorithm.name", draw(st.sampled_from(("grpo", "grpo", "ppo", "rloo", "remax"))))
    often = [path for path in PATHS if path.split(".")[0] in ("actor", "batches", "algorithm")]
    never = (
        "model.id",
        "model.critic_id",
        "model.trust_remote_code",
        "rollout.engine",
        "algorithm.name",
        "model.liger",
    )
    sampled = st.sampled_from([path for path in (*PATHS, *often, *ROLE_PATHS) if path not in never])
    for path in draw(st.lists(sampled, max_size=10, unique=True)):
        plan = plan.replace(path, draw(value_of(path)))
    return plan


EARLY = (Stage.COMPOSITION, Stage.DRIVER, Stage.TRAINER, Stage.WORKERS)


@pytest.mark.verl
@pytest.mark.slow
def test_random_plans_are_accepted_by_verl(verl: Verl):
    accepted = 0

    @settings(
        max_examples=35, database=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(sound_plans())
    def sweep(plan: Plan) -> None:
        nonlocal accepted
        assume(not any(f.severity is Severity.ERROR and f.stage in EARLY for f in check_plan(plan)))
        # With LoRA verl's trainer builds no reference (trainer_base.py, ref_in_actor); the oracle would build one.
        assume(not (plan.model.lora_rank and plan.ref is not None))
        overrides = plan_to_overrides(plan)
        if accepted < 5:  # composing takes most of the time, and depends on few of the values
            answer = verl.ask(overrides=[override_text(key, value, "++") for key, value in overrides.items()])
            assert answer == {}, overrides
        answer = verl.ask(values=overrides)
        assert answer == {}, (overrides, answer)
        accepted += 1

    sweep()
    assert accepted >= 8
