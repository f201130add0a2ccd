"""What NVML says against torch.cuda's own numbers, on a real GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from wizard.probe.environment import read_environment
from wizard.probe.gpus import GpuReader, read_gpus
from wizard.probe.host import read_host
from wizard.probe.machine import machine_from
from wizard.probe.versions import State

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture(scope="module")
def cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    torch.ones(1, device="cuda")
    return torch.cuda


def test_the_report_is_torchs(cuda: Any) -> None:
    report = read_gpus()
    assert report.nvml == "ok"
    assert len(report.visible.devices) == cuda.device_count()
    compared = []
    for ordinal, device in enumerate(report.visible.devices):
        gpu = report.gpu(device.gpu_index)
        memory = report.memory_of(device)
        properties = cuda.get_device_properties(ordinal)
        free, total = cuda.mem_get_info(ordinal)
        assert gpu.name == properties.name
        assert gpu.compute_capability == f"{properties.major}.{properties.minor}"
        assert memory is not None
        compared.append(
            {
                "name": gpu.name,
                "nvml_total_bytes": memory.total_bytes,
                "torch_total_bytes": total,
                "nvml_free_bytes": memory.free_bytes,
                "torch_free_bytes": free,
            }
        )
    folder = os.environ.get("VERL_WIZARD_MEASUREMENTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        written = {"report": report, "compared": compared, "host": read_host()}
        (Path(folder) / "nvml.json").write_text(json.dumps(msgspec.to_builtins(written), indent=1) + "\n")
    for row in compared:
        assert row["nvml_total_bytes"] == pytest.approx(row["torch_total_bytes"], rel=0.002)
        assert row["nvml_free_bytes"] == pytest.approx(row["torch_free_bytes"], abs=256 * MIB)


def test_refresh_sees_an_allocation(cuda: Any) -> None:
    with GpuReader() as reader:
        before = reader.read()
        device = before.visible.devices[0]
        held = cuda.caching_allocator_alloc(2048 * MIB, 0)
        try:
            after = reader.refresh(before)
        finally:
            cuda.caching_allocator_delete(held)
            cuda.empty_cache()
    was, now = before.memory_of(device), after.memory_of(device)
    assert was is not None
    assert now is not None
    assert was.free_bytes - now.free_bytes == pytest.approx(2048 * MIB, abs=256 * MIB)


def test_pairs_that_nvml_calls_nvlink_can_access_each_other(cuda: Any) -> None:
    report = read_gpus()
    if not report.links:
        pytest.skip("one GPU has no pair")
    ordinals = {device.gpu_index: number for number, device in enumerate(report.visible.devices)}
    for link in report.links:
        if link.kind == "nvlink" and {link.first, link.second} <= ordinals.keys():
            assert cuda.can_device_access_peer(ordinals[link.first], ordinals[link.second])


def test_the_machine_and_the_environment_agree_with_torch(cuda: Any) -> None:
    machine = machine_from(read_gpus(), read_host())
    assert machine.gpus_per_node == cuda.device_count()
    rows = {row.name: row for row in read_environment().rows}
    assert rows["cuda"].state is not State.FAIL, rows["cuda"].reason
