"""Shards on real ranks: what each gloo rank holds after an update against the prediction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from measure_cases import Case
from measured_rows import replay


@pytest.mark.slow
def test_two_ranks_hold_half_each(tmp_path: Path) -> None:
    pytest.importorskip("verl")
    case = Case(
        layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, intermediate=256, vocab=1024, tokens=64,
        world_size=2, loss="v2",
    )  # fmt: skip
    command = (str(Path(__file__).with_name("gloo_probe.py")), json.dumps(asdict(case)), str(tmp_path))
    done = subprocess.run(
        [*(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"), *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    predicted = replay(case).peaks["fwd"].breakdown
    for rank in ranks:
        assert rank["parameters"] == predicted["parameters"]
        assert rank["optimizer"] == predicted["optimizer"]
