"""Mappings of roles to GPU groups: what cannot be, what needs a launcher, what is fine; and that every rule counts the
ranks of the role it speaks of."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from wizard.facts import Machine
from wizard.findings import Severity
from wizard.placing import LAYOUTS, laid_out, layout_refusals, parse_groups
from wizard.plan import Algorithm, Batches, Fsdp, Model, Placement, Plan, Rollout, Target
from wizard.rules import apply_fix, check_plan, explain
from wizard.rules.placement import PLACEMENT_RULES

PPO = Plan(algorithm=Algorithm(name="ppo"), machine=Machine(nodes=2, gpus_per_node=8))
REWARD = {"extra_overrides": (("reward.reward_model.enable", True),)}
OLD = {"target": Target(verl_version="0.8.0")}


def placed(groups: str, **fields: Any) -> Plan:
    return dataclasses.replace(PPO, placement=Placement(parse_groups(groups)), **fields)


def placement_ids(plan: Plan, severity: Severity | None = None) -> list[str]:
    found = [finding for finding in check_plan(plan) if finding.id in PLACEMENT_RULES]
    return [finding.id for finding in found if severity in (None, finding.severity)]


@pytest.mark.parametrize(
    ("rule", "groups", "fields"),
    [
        ("placement-twice", "actor+rollout+ref+critic=1x8; critic=1x8", {}),
        ("placement-twice", "actor+rollout+ref=1x8; actor+critic=1x8", {}),
        ("placement-missing", "actor+rollout+ref=2x8", {}),
        ("placement-missing", "rollout+ref=1x8; critic=1x8", {}),
        ("placement-extra", "actor+rollout+ref=2x6; critic=2x2", {"algorithm": Algorithm(name="grpo")}),
        ("placement-extra", "actor+rollout=2x6; ref=2x2", {"algorithm": Algorithm(name="grpo", use_kl_loss=False)}),
        ("placement-extra", "actor+rollout+ref+critic=2x6; reward=2x2", {}),
        ("placement-empty", "actor+rollout+ref=2x8; critic=1x0", {}),
        ("placement-node", "actor+rollout+ref+critic=1x16", {}),
        ("placement-gpus", "actor+rollout+ref=2x8; critic=1x8", {}),
        ("placement-pack", "actor+rollout+ref=2x6; critic=1x4", {}),
        ("placement-idle", "actor+rollout+ref=2x6; critic=1x2", {}),
        ("placement-ref", "actor+rollout+critic=2x6; ref=2x2", {"model": Model(lora_rank=8)}),
        ("placement-rollout", "actor+ref=2x4; rollout+critic=2x4", {}),
        ("placement-rollout", "actor+ref+critic=2x4; rollout=2x4", OLD),
        ("placement-rollout", "actor+ref+critic=2x4; rollout=2x4", {"extra_overrides": (("trainer.use_v1", False),)}),
        ("placement-reward", "actor+rollout+ref=2x4; critic+reward=2x4", REWARD),
        ("placement-reward", "actor+ref+critic+reward=2x4; rollout=2x4", REWARD),
        ("placement-launcher", "actor+rollout+ref=1x8; critic=1x8", {}),
        ("placement-launcher", "actor+rollout=2x4; critic+ref=2x4", OLD),
    ],
)
def test_mapping(rule: str, groups: str, fields: dict[str, Any]) -> None:
    plan = placed(groups, **fields)
    findings = [finding for finding in check_plan(plan) if finding.id in PLACEMENT_RULES]
    before = placement_ids(plan, Severity.ERROR)
    assert rule in {finding.id for finding in findings}
    for finding in findings:
        assert finding.severity is explain(finding.id).severity
        assert finding.fixes or finding.severity is not Severity.ERROR
        for fix in finding.fixes:
            after = placement_ids(apply_fix(plan, fix), Severity.ERROR)
            assert after.count(finding.id) < max(1, before.count(finding.id)), fix.label
            assert set(after) <= set(before), fix.label


@pytest.mark.parametrize(
    ("groups", "fields"),
    [
        ("", {}),
        ("actor+rollout+ref+critic=2x8", {}),
        ("actor+ref+critic=2x4; rollout=2x4", {}),
        ("actor+rollout+ref+critic=2x6; reward=2x2", REWARD),
        ("actor+rollout+ref+critic+reward=2x8", REWARD),
        ("actor+ref+critic=2x4; rollout=2x2; reward=2x2", REWARD),
    ],
)
def test_what_configuration_expresses_has_no_finding(groups: str, fields: dict[str, Any]) -> None:
    assert placement_ids(placed(groups, **fields)) == []


@pytest.mark.parametrize("machine", [Machine(nodes=1, gpus_per_node=8), Machine(nodes=4, gpus_per_node=1)])
def test_ready_made_mappings_have_no_error(machine: Machine) -> None:
    plan = dataclasses.replace(PPO, machine=machine, **REWARD)
    refusals = layout_refusals(plan)
    assert not any(refusals.values())
    for name in LAYOUTS:
        groups = laid_out(plan, name)
        chosen = dataclasses.replace(plan, placement=Placement(groups))
        assert placement_ids(chosen) in ([], ["placement-launcher"]), name
        apart = [group.roles for group in groups[1:]]
        # verl's separate_async refuses a reward model on the actor's GPUs.
        moved = (*LAYOUTS[name].apart, "reward") if name == "rollout" else LAYOUTS[name].apart
        assert apart == [(role,) for role in moved]


def test_a_ready_made_mapping_says_why_it_cannot_be_chosen() -> None:
    refusals = layout_refusals(Plan(machine=Machine(gpus_per_node=2), model=Model(lora_rank=8), **OLD))  # type: ignore[arg-type]
    assert refusals == {
        "colocated": "",
        "rollout": "not in verl 0.8.0",
        "critic": "grpo has no critic",
        "ref": "with LoRA the actor is its own reference",
        "critic-ref": "grpo has no critic",
        "reward": "no reward model is given",
    }
    few = layout_refusals(dataclasses.replace(PPO, machine=Machine(gpus_per_node=2)))
    assert few["critic-ref"] == "needs 3 GPUs of a node, or 3 nodes"


@pytest.mark.parametrize(
    ("rule", "groups", "fields", "said"),
    [
        # 64 prompts × 5 responses over 4 ranks of the actor, 3 of the critic.
        ("mini-batch-divisible", "actor+rollout+ref=1x4; critic=1x3", {}, "3 data-parallel ranks of the critic"),
        ("fsdp-size", "actor+rollout+ref=2x4; critic=2x3", {"actor": Fsdp(fsdp_size=4)}, "6 GPUs"),
        ("ulysses-world", "actor+rollout+critic=1x4; ref=1x2", {"actor": Fsdp(ulysses_size=4)}, "of the ref"),
        ("score-batch-divisible", "actor+rollout+critic=1x4; ref=1x3", OLD, "3 data-parallel ranks of the ref"),
        ("rollout-tensor-parallel", "actor+ref+critic=1x4; rollout=1x2", {"rollout": Rollout(tensor_parallel_size=4)},
         "2 GPUs do not divide into replicas of 4"),
        ("log-prob-micro-divisible", "actor+rollout+critic=1x4; ref=1x3", {"batches": Batches(dynamic=False)},
         "426 or 427 samples"),
    ],
)  # fmt: skip
def test_each_role_counts_its_own_ranks(rule: str, groups: str, fields: dict[str, Any], said: str) -> None:
    apart = placed(groups, **fields)
    [message] = [finding.message for finding in check_plan(apart) if finding.id == rule]
    assert said in message
    together = dataclasses.replace(apart, placement=Placement(), machine=Machine(gpus_per_node=4))
    assert rule not in {finding.id for finding in check_plan(together)}
