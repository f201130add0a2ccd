"""Mappings of roles to GPU groups: what cannot be, what needs a launcher, what is fine."""

from __future__ import annotations

import dataclasses

import pytest

from wizard.facts import Machine
from wizard.plan import Algorithm, GpuGroup, Placement, Plan
from wizard.rules import apply_fix, check_plan, explain
from wizard.rules.placement import PLACEMENT_RULES

PPO = Plan(algorithm=Algorithm(name="ppo"), machine=Machine(nodes=2, gpus_per_node=8))


def group(roles: str, nodes: int, gpus: int) -> GpuGroup:
    return GpuGroup(tuple(roles.split()), nodes, gpus)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "groups"),
    [
        ("placement-twice", [group("actor rollout ref critic", 1, 8), group("critic", 1, 8)]),
        ("placement-missing", [group("actor rollout ref", 2, 8)]),
        ("placement-empty", [group("actor rollout ref", 2, 8), group("critic", 1, 0)]),
        ("placement-node", [group("actor rollout ref critic", 1, 16)]),
        ("placement-gpus", [group("actor rollout ref", 2, 8), group("critic", 1, 8)]),
        ("placement-pack", [group("actor rollout ref", 2, 6), group("critic", 1, 4)]),
        ("placement-ref", [group("actor rollout", 1, 8), group("critic ref", 1, 8)]),
        ("placement-critic", [group("actor rollout ref", 1, 8), group("critic", 1, 8)]),
    ],
)
def test_mapping(rule: str, groups: list[GpuGroup]) -> None:
    plan = dataclasses.replace(PPO, placement=Placement(tuple(groups)))
    placement = [finding for finding in check_plan(plan) if finding.id in PLACEMENT_RULES]
    assert rule in {finding.id for finding in placement}
    for finding in placement:
        assert finding.severity is explain(finding.id).severity
        for fix in finding.fixes:
            left = check_plan(apply_fix(plan, fix))
            assert not {found.id for found in left} & set(PLACEMENT_RULES)


def test_a_role_the_algorithm_lacks() -> None:
    grpo = dataclasses.replace(
        PPO, algorithm=Algorithm(name="grpo"), placement=Placement((group("actor rollout ref critic", 2, 8),))
    )
    assert [f.id for f in check_plan(grpo) if f.id in PLACEMENT_RULES] == ["placement-extra"]


def test_colocated_and_side_by_side_are_fine() -> None:
    for groups in ((), (group("actor rollout ref critic", 2, 8),)):
        plan = dataclasses.replace(PPO, placement=Placement(groups))
        assert not {f.id for f in check_plan(plan)} & set(PLACEMENT_RULES)
