"""Choices of the Plan that do not fit the model or the ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Bench, plan_of, shaped
from wizard.plan import Plan

pytest.importorskip("torch")
pytestmark = pytest.mark.fault


def actor(plan: Plan, **changes: Any) -> Plan:
    return dataclasses.replace(plan, actor=dataclasses.replace(plan.actor, **changes))


def test_wrap_class_in_the_wrong_letter_case(bench: Bench, tiny: Path):
    _, fixed = bench.is_cured_by_its_first_fix("wrap-class-missing", plan_of(tiny, wrap_classes=("qwen2decoderlayer",)))
    assert fixed.actor.wrap_classes == ("Qwen2DecoderLayer",)


def test_units_inside_units(bench: Bench, tiny: Path):
    plan = plan_of(tiny, wrap_classes=("Qwen2DecoderLayer", "Qwen2MLP"))
    _, fixed = bench.is_cured_by_its_first_fix("wrap-nested", plan, ranks=2)
    assert fixed.actor.wrap_classes == ("Qwen2DecoderLayer",)


def test_sequence_parallel_size_that_does_not_divide_the_heads(bench: Bench, tmp_path: Path):
    plan = actor(shaped(tmp_path, num_attention_heads=3, num_key_value_heads=1, hidden_size=48), ulysses_size=2)
    _, fixed = bench.is_cured_by_its_first_fix("ulysses-heads", plan, ranks=2, random_weights=True)
    assert fixed.actor.ulysses_size == 1


def test_sequence_parallel_size_that_does_not_divide_the_ranks(bench: Bench, tiny: Path):
    bench.is_cured_by_its_first_fix("ulysses-world", plan_of(tiny, ulysses_size=2))


def test_shard_group_that_does_not_divide_the_ranks(bench: Bench, tiny: Path):
    bench.is_cured_by_its_first_fix("fsdp-size", plan_of(tiny, fsdp_size=0))
