"""Findings of a Plan speak of the Plan's fields, and their fixes apply to it."""

from __future__ import annotations

import dataclasses

from rule_bench import MACHINE, architecture

from wizard.findings import Severity
from wizard.plan import Plan, field_specs
from wizard.rules import apply_fix, check_plan


def plan(**edits: object) -> Plan:
    found = dataclasses.replace(Plan(), machine=MACHINE, architecture=architecture())
    for path, value in edits.items():
        found = found.replace(path.replace("__", "."), value)
    return found


def test_the_default_plan_has_no_error() -> None:
    assert [f for f in check_plan(plan()) if f.severity is Severity.ERROR] == []


def test_bf16_reduction_is_an_error_of_the_plan_and_fp32_mends_it() -> None:
    broken = plan(actor__reduce_dtype="bf16")
    [finding] = [f for f in check_plan(broken) if f.id == "reduce-dtype"]
    assert (finding.field, finding.value, finding.severity) == ("actor.reduce_dtype", "bf16", Severity.ERROR)
    assert apply_fix(broken, finding.fixes[0]).actor.reduce_dtype == "fp32"


def test_a_role_of_its_own_is_named() -> None:
    broken = plan(algorithm__name="ppo", critic__fsdp_size=3)
    assert {(f.id, f.field) for f in check_plan(broken) if f.id == "fsdp-size"} == {("fsdp-size", "critic.fsdp_size")}


def test_roles_that_follow_the_actor_say_nothing_twice() -> None:
    broken = plan(actor__ulysses_size=8)
    found = [(f.id, f.field) for f in check_plan(broken) if f.id == "ulysses-heads"]
    assert found == [("ulysses-heads", "actor.ulysses_size")]


def test_all_three_offloads_keep_one() -> None:
    broken = plan(actor__param_offload=True, actor__optimizer_offload=True, actor__offload_policy=True)
    [finding] = [f for f in check_plan(broken) if f.id == "offload-policy-overrides"]
    one, other = (apply_fix(broken, fix).actor for fix in finding.fixes)
    assert (one.param_offload, one.optimizer_offload, one.offload_policy) == (False, False, True)
    assert (other.param_offload, other.optimizer_offload, other.offload_policy) == (True, True, False)


def test_every_fix_of_a_plan_is_a_field_or_a_verl_key() -> None:
    broken = plan(
        algorithm__name="ppo", batches__dynamic=False, batches__train_batch_size=33, actor__fsdp_size=3,
        actor__ulysses_size=8, actor__wrap_classes=("qwen2decoderlayer",), rollout__tensor_parallel_size=3,
    )  # fmt: skip
    found = check_plan(broken)
    assert {"train-batch-divisible", "fsdp-size", "ulysses-heads", "wrap-class-missing"} <= {f.id for f in found}
    for finding in found:
        for fix in finding.fixes:
            for change in fix.changes:
                assert change.field in field_specs() or change.field.count(".") >= 1
            apply_fix(broken, fix)
