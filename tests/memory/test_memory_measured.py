"""The predictor against bytes that an H200's allocator reported."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
from measure_cases import Case
from measured_rows import FIRST_CHUNK_ROWS, Row, architecture_of, first_rows, plan_of, replay, rows

from wizard.memory.reserved import reserved_bytes

ROWS = tuple(rows())
GIB = 2**30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.data["key"])
def test_peak_is_within_three_percent(row: Row) -> None:
    assert abs(row.error) <= 0.03, f"{row.error:+.2%} at {row.replay().peak.at}"


def test_median_is_within_one_percent() -> None:
    errors = [abs(row.error) for row in ROWS]
    assert len(errors) >= 60
    assert statistics.median(errors) <= 0.001
    assert sum(error > 0.01 for error in errors) <= 1, "the open cause: Inductor's order in compiled chunked entropy"


@pytest.mark.parametrize("stage", ["fwd", "opt"])
def test_stages_are_right_one_by_one(stage: str) -> None:
    """Not only the highest: forward and optimizer step each, so that two wrong terms cannot hide behind a third."""
    off = {}
    for row in ROWS:
        measured = row.data["peak_by_stage_bytes"].get(stage)
        if measured and row.case.loss != "fused":
            error_bytes = row.replay().peaks[stage].total_bytes - measured
            # 16 MiB: ids, masks and scalars that are left out; with offload nothing else is on the GPU.
            if abs(error_bytes) > max(0.03 * measured, 16 * 2**20):
                off[row.data["key"]] = error_bytes
    assert not off


def test_covers_what_the_issue_names() -> None:
    cases = [row.case for row in ROWS]
    for wanted in (
        lambda case: case.tied,
        lambda case: case.strategy == "fsdp",
        lambda case: case.micro_batches > 1 and case.no_sync,
        lambda case: case.micro_batches > 1 and not case.no_sync,
        lambda case: case.entropy == "eager",
        lambda case: case.entropy == "compiled",
        lambda case: case.entropy == "chunked",
        *((lambda case, loss=loss: case.loss == loss) for loss in ("flash", "v2", "ce32", "fused")),
        lambda case: case.lora_rank,
        lambda case: case.offload_policy,
        lambda case: 0 < case.fsdp_size < case.world_size,
        lambda case: case.ulysses > 1,
        lambda case: case.experts,
        lambda case: not case.gradient_checkpointing,
    ):
        assert any(wanted(case) for case in cases)


def test_parameters_are_those_of_the_real_models() -> None:
    for row in ROWS:
        if row.case.mode != "value" and not row.case.lora_rank:
            assert architecture_of(row.case).parameters == row.data["parameters"], row.data["key"]


def test_adapters_are_those_peft_made() -> None:
    from wizard.memory.roles import role_shape

    rows_with = [row for row in ROWS if row.case.lora_rank]
    assert rows_with
    for row in rows_with:
        shape = role_shape(plan_of(row.case), "actor")
        assert shape.parameters == row.data["parameters"], row.data["key"]


@pytest.mark.parametrize(("case", "data"), list(first_rows()), ids=lambda value: getattr(value, "key", ""))
def test_first_measurement_holds(case: Case, data: dict[str, Any]) -> None:
    """An older, independent measurement, made without expandable segments: up to 1 MiB is lost a tensor. Its plain
    formula missed tied models by 12 % because the imitated loss had temporaries: three fp32 copies of 256 rows."""
    ledger = replay(case, FIRST_CHUNK_ROWS)
    assert ledger.peak.total_bytes / (data["measured_peak_gib"] * GIB) == pytest.approx(1, abs=0.01)
    for stage, measured_gib in data["measured_by_phase_gib"].items():
        assert ledger.peaks[stage].total_bytes / (measured_gib * GIB) == pytest.approx(1, abs=0.02), stage


def test_reserved_of_fsdp2_follows_the_streams() -> None:
    """fsdp only: FSDP1's recorded streams return blocks when the GPU gets there, which no replay knows."""
    errors = [
        abs(reserved_bytes(row.replay()) / row.data["reserved_bytes"] - 1)
        for row in ROWS
        if row.case.strategy == "fsdp2" and row.data["reserved_bytes"]
    ]
    assert statistics.median(errors) <= 0.06


def test_replay_takes_milliseconds() -> None:
    start = time.perf_counter()
    for _ in range(20):
        replay(Case(layers=80, hidden=8192, heads=64, kv_heads=8, intermediate=29568, micro_batches=8))
    assert (time.perf_counter() - start) / 20 < 0.02
