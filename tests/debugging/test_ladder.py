"""The rungs: each adds one thing to the one before, and what is left out says why."""

from __future__ import annotations

import dataclasses

import pytest

from wizard.debugging.ladder import DDP, FSDP, OFFLOAD, ONE_DEVICE, PLANNED, PRECISION, ULYSSES, ladder
from wizard.validation.spec import ValidationSpec

PLANNED_SPEC = ValidationSpec(
    model="/a/model", model_config={}, world_size=4, device="cpu", strategy="fsdp2", wrap_classes=("Layer",),
    param_dtype="bf16", attention="flash_attention_2", param_offload=True, ulysses_size=2, fsdp_size=2,
    tokens=5000, sequence_tokens=4000, engine="verl", verl_overrides={"a.key": 1}, expected_units=9,
)  # fmt: skip
ADDED = {
    DDP: {"world_size", "strategy"},
    FSDP: {"strategy", "wrap_classes", "expected_units", "fsdp_size"},
    PRECISION: {"param_dtype", "attention"},
    OFFLOAD: {"param_offload"},
    ULYSSES: {"ulysses_size"},
}


def changed(before: ValidationSpec, after: ValidationSpec) -> set[str]:
    one, other = dataclasses.asdict(before), dataclasses.asdict(after)
    return {name for name in one if one[name] != other[name]}


def test_each_rung_adds_one_thing():
    rungs = ladder(PLANNED_SPEC)
    assert [rung.name for rung in rungs] == [ONE_DEVICE, *ADDED, PLANNED]
    specs = [rung.spec for rung in rungs if rung.spec is not None]
    assert len(specs) == len(rungs)
    for rung, before, after in zip(rungs[1:], specs, specs[1:-1], strict=False):
        assert changed(before, after) == ADDED[rung.name], rung.name
    assert specs[-1] == PLANNED_SPEC


def test_compared_rungs_see_the_same_data_in_torchs_engine():
    compared = [rung.spec for rung in ladder(PLANNED_SPEC)[:-1]]
    data = {(s.tokens, s.sequence_tokens, s.data_shards, s.micro_batches, s.seed, s.engine) for s in compared if s}
    assert len(data) == 1
    tokens, sequence_tokens, shards, *_, engine = data.pop()
    assert (shards, engine) == (PLANNED_SPEC.world_size, "torch")
    assert tokens % PLANNED_SPEC.ulysses_size == 0
    assert sequence_tokens <= tokens < PLANNED_SPEC.tokens


@pytest.mark.parametrize(
    ("changes", "left_out", "why"),
    [
        ({"world_size": 1, "ulysses_size": 1, "fsdp_size": -1}, DDP, "one rank"),
        ({"param_dtype": "fp32", "attention": "sdpa"}, PRECISION, "fp32"),
        ({"param_offload": False}, OFFLOAD, "offloads nothing"),
        ({"ulysses_size": 1}, ULYSSES, "ulysses_size is 1"),
    ],
)
def test_a_rung_with_nothing_to_add_says_so(changes: dict[str, object], left_out: str, why: str):
    rung = next(rung for rung in ladder(dataclasses.replace(PLANNED_SPEC, **changes)) if rung.name == left_out)
    assert rung.spec is None
    assert why in rung.skipped


def test_a_model_too_big_for_one_device_is_not_tried_there():
    """7e9 parameters x 16 bytes are 104 GiB."""
    rungs = {rung.name: rung for rung in ladder(PLANNED_SPEC, parameters=7 * 10**9, memory_bytes=80 * 2**30)}
    assert rungs[ONE_DEVICE].spec is rungs[DDP].spec is None
    assert "104 GiB" in rungs[DDP].skipped
    assert rungs[FSDP].spec is not None
