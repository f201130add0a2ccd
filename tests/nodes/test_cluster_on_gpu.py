"""The cluster check on this machine's GPUs, through NCCL."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]


def test_gpus_and_nccl_are_those_of_torch():
    count = torch.cuda.device_count()
    done = subprocess.run(
        [sys.executable, "-m", "wizard", "cluster", "--json"], capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)
    assert report["verdict"]["outcome"] == "passed", done.stdout[-3000:] + done.stderr
    [node] = report["nodes"]
    visible = [torch.cuda.get_device_properties(index) for index in range(count)]
    totals = [torch.cuda.mem_get_info(index)[1] for index in range(count)]
    seen = {(gpu["name"], gpu["total_bytes"]) for gpu in node["gpus"]}
    assert {(each.name, total) for each, total in zip(visible, totals, strict=True)} <= seen
    assert node["versions"]["NCCL"] == ".".join(map(str, torch.cuda.nccl.version()))
    assert node["driver"]
    measured = report["measured"]
    assert measured["backend"] == "nccl"
    assert [step["rank"] for step in measured["steps"]] == list(range(count))
    # Two cubes of 8192 floating-point operations; no GPU of today does 10 PFLOP/s in bf16.
    assert all(step["compute_seconds"] > 2 * 8192**3 / 1e16 for step in measured["steps"])
    assert len(measured["bandwidths"]) == (9 if count > 1 else 0)
    assert all(1e8 < one["bus_bytes_per_second"] < 2e12 for one in measured["bandwidths"])
