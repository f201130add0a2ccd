"""Sharding over several ranks against torch's own FSDP2 memory tracker, on the CPU with fake tensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from measure_cases import Case
from measured_rows import replay

SMALL = Case(
    layers=3, hidden=512, heads=8, kv_heads=2, head_dim=64, intermediate=1408, vocab=8192, tokens=512,
)  # fmt: skip
CASES = (
    replace(SMALL, world_size=2),
    replace(SMALL, world_size=3),
    replace(SMALL, world_size=8),
    replace(SMALL, world_size=16, fsdp_size=4),
    replace(SMALL, world_size=8, tied=True),
)


@pytest.fixture(scope="module")
def tracked() -> list[dict[str, dict[str, int]]]:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("tracker_probe.py"))],
        input=json.dumps([asdict(case) for case in CASES]),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("index", range(len(CASES)))
def test_sharded_parameters_and_gradients(tracked: Any, index: int) -> None:
    """Within what padding adds on rank 0, when a dimension does not divide."""
    case, found = CASES[index], tracked[index]
    shard = replay(case).peak.breakdown["parameters"]
    assert found["peak"]["SHARDED_PARAM"] == pytest.approx(shard, rel=0.002)
    assert found["current"]["SHARDED_GRAD"] == pytest.approx(shard, rel=0.002)


@pytest.mark.parametrize("index", [index for index, case in enumerate(CASES) if not case.tied])
def test_gathered_units_and_collective_buffers_at_the_peak(tracked: Any, index: int) -> None:
    found = tracked[index]["peak"]
    gathered = found["UNSHARDED_PARAM"] + found["ALL_GATHER"] + found["REDUCE_SCATTER"]
    predicted = replay(CASES[index]).peaks["bwd"]
    assert predicted.breakdown["unsharded"] == pytest.approx(gathered, rel=0.002)
