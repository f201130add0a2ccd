"""Every rule: what breaks it is found where it is, the fix makes it go away, the good configuration is left alone."""

from __future__ import annotations

import dataclasses
import time

import pytest
from rule_bench import DYNAMIC, FSDP1, PPO, architecture, config_of, facts, fixed, ids
from rule_table import BROKEN, CLASSES, Broken

from wizard.findings import Severity
from wizard.rules import ALL_RULES, Facts, check_config, explain
from wizard.rules.placement import PLACEMENT_RULES
from wizard.rules.remedies import EXAMPLES
from wizard.verl.config import Assignment, VerlConfig
from wizard.verl.schema import load_schema

ELSEWHERE = {"hydra-refuses", "score-batch-divisible", "wrap-expert", *PLACEMENT_RULES}
"""Rules that a table of values cannot break: tested by themselves below and in test_placement_rules.py."""


def test_every_rule_is_tested() -> None:
    assert {case.id for case in BROKEN} | ELSEWHERE == {info.id for info in ALL_RULES}


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: f"{case.id} {case.note}".strip())
def test_broken_is_found_and_mended(case: Broken) -> None:
    config, around = config_of(case.changes, without=case.without), facts(**case.around)
    found = [finding for finding in check_config(config, around) if finding.id == case.id]
    assert [(f.field, f.severity.value, f.stage.value) for f in found if f.field == case.field] == [
        (case.field, case.severity, case.stage)
    ]
    assert all(finding.source and finding.message for finding in found)
    assert case.fixable == all(finding.fixes for finding in found)
    for finding in found:
        for fix in finding.fixes:
            left = [f for f in check_config(fixed(config, finding, fix), around) if f.id == case.id]
            assert finding.field not in {f.field for f in left}, (fix, left)


@pytest.mark.parametrize(
    "changes", [{}, DYNAMIC, PPO, {**PPO, **DYNAMIC}, FSDP1], ids=["grpo", "dynamic", "ppo", "both", "fsdp"]
)
def test_good_configuration_is_left_alone(changes: dict[str, object]) -> None:
    found = check_config(config_of(changes), facts())
    assert [f for f in found if f.severity is not Severity.NOTE] == []


def test_rules_without_facts_say_nothing() -> None:
    def needs_facts(case: Broken) -> bool:
        return bool(case.around)

    for case in filter(needs_facts, BROKEN):
        if case.id in ("rollout-nodes", "micro-batch-divisible", "bf16-compute-capability"):
            continue
        found = ids(config_of(case.changes, without=case.without), Facts())
        assert case.id not in found, case.id


def test_experts_are_not_wrapped() -> None:
    moe = architecture("Qwen/Qwen3-30B-A3B")
    block = next(entry for entry in moe.layer_classes if entry.detected)
    expert = dataclasses.replace(block, name="ExpertMLP", kind="expert", count=128 * moe.num_layers, detected=False)
    around = dataclasses.replace(
        facts(), architecture=dataclasses.replace(moe, layer_classes=(*moe.layer_classes, expert))
    )
    broken = config_of({CLASSES: ["ExpertMLP"]})
    [finding] = [f for f in check_config(broken, around) if f.id == "wrap-expert"]
    assert finding.severity is Severity.ERROR
    assert fixed(broken, finding, finding.fixes[0]).get(CLASSES) == [block.name]


@pytest.mark.parametrize(
    ("key", "mode", "value", "becomes"),
    [
        ("actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype", "", "fp32", "+"),
        ("actor_rollout_ref.actor.fsdp_config.model_dtype", "+", "fp32", ""),
        ("actor_rollout_ref.actor.fsdp_config.grad_offload", "", True, ""),
    ],
)
def test_what_hydra_refuses(key: str, mode: str, value: object, becomes: str) -> None:
    good = config_of({})
    broken = VerlConfig(good.schema, [*good.assignments, Assignment(key, value, mode)])  # type: ignore[arg-type]
    [finding] = [f for f in check_config(broken, facts()) if f.id == "hydra-refuses"]
    assert (finding.field, finding.severity.value, finding.stage.value) == (key, "error", "composition")
    change = finding.fixes[0].changes[0]
    if becomes == "+":
        assert change.field == f"+{key}"
    mended = fixed(broken, finding, finding.fixes[0])
    assert "hydra-refuses" not in ids(mended, facts())


def test_wrong_case_of_a_class_is_mended_by_the_nearest() -> None:
    config = config_of({CLASSES: ["qwen2decoderlayer"]})
    [finding] = [f for f in check_config(config, facts()) if f.id == "wrap-class-missing" and f.field == CLASSES]
    assert finding.fixes[0].changes[0].value == ["Qwen2DecoderLayer"]


def test_ulysses_falls_to_the_largest_size_that_divides() -> None:
    config = config_of({"actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 8})
    [finding] = [f for f in check_config(config, facts()) if f.id == "ulysses-heads"]
    assert {change.value for change in finding.fixes[0].changes} == {4}


@pytest.mark.parametrize("version", ["0.6.1", "0.7.1", "0.8.0", "0.9.1"])
def test_all_rules_run_on_every_recorded_version_in_time(version: str) -> None:
    schema = load_schema(version)
    config = VerlConfig(schema, [Assignment("trainer.n_gpus_per_node", 8)])
    check_config(config, facts())
    started = time.perf_counter()
    check_config(config, facts())
    assert time.perf_counter() - started < 0.05


def test_example_of_a_fix_is_one_the_rule_offers() -> None:
    for rule in {case.id for case in BROKEN if case.fixable}:
        offered = {
            fix.label
            for case in BROKEN
            if case.id == rule
            for finding in check_config(config_of(case.changes, without=case.without), facts(**case.around))
            if finding.id == rule
            for fix in finding.fixes
        }
        assert EXAMPLES[rule] in offered, rule


def test_every_rule_is_explained() -> None:
    for info in ALL_RULES:
        assert explain(info.id) is info
        assert len(info.explanation) > 20, info.id
        assert info.source, info.id
        assert info.id == info.id.lower().replace("_", "-").replace(" ", "-")
