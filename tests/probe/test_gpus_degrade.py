"""An NVML error costs one field; the errors are pynvml's own, the rest of the answers a table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import psutil
import pynvml
import pytest
from nvml_node import MIB, Node

from wizard.probe.gpu_report import Gpu, GpuReport
from wizard.probe.gpu_text import all_cells, link_lines, notes, process_lines, summary
from wizard.probe.gpus import GpuReader
from wizard.probe.host import read_host
from wizard.probe.machine import machine_from

NO_TARGET = "/nonexistent/python"
"""A target whose torch cannot be asked, so that what is missing stays missing."""


def read(node: Node, python: str = NO_TARGET, **environ: str) -> GpuReport:
    with GpuReader(python, call=node, environ=environ) as reader:
        return reader.read()


def without(gpu: Gpu, *fields: str) -> dict[str, object]:
    return {name: value for name, value in dataclasses.asdict(gpu).items() if name not in (*fields, "faults")}


def test_everything_read() -> None:
    report = read(Node())
    assert (report.nvml, report.driver_version, report.cuda_version, report.faults) == ("ok", "580.95.05", "13.0", ())
    gpu = report.gpus[1]
    assert gpu.memory is not None
    assert (gpu.memory.total_bytes, gpu.memory.free_bytes) == (143167 * MIB, 143167 * MIB)
    assert (gpu.name, gpu.compute_capability) == ("NVIDIA H200", "9.0")
    assert (gpu.utilisation_percent, gpu.mig_enabled) == (7, False)
    assert gpu.processes[0].used_bytes is None
    assert (report.links[0].kind, report.links[0].path) == ("nvlink", "NV18")
    assert all(not gpu.faults for gpu in report.gpus)


FIELDS = [
    ("nvmlDeviceGetUUID", "uuid", ""),
    ("nvmlDeviceGetName", "name", ""),
    ("nvmlDeviceGetPciInfo", "bus_id", ""),
    ("nvmlDeviceGetCudaComputeCapability", "compute_capability", ""),
    ("nvmlDeviceGetUtilizationRates", "utilisation_percent", None),
    ("nvmlDeviceGetMigMode", "mig_enabled", None),
    ("nvmlDeviceGetMemoryInfo", "memory", None),
    ("nvmlDeviceGetComputeRunningProcesses", "processes", ()),
]


@pytest.mark.parametrize(("function", "field", "missing"), FIELDS)
@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NO_PERMISSION]
)
def test_an_error_costs_only_its_field(function: str, field: str, missing: object, code: int) -> None:
    report = read(Node(**{function: code}))
    for gpu, whole in zip(report.gpus, read(Node()).gpus, strict=True):
        assert getattr(gpu, field) == missing
        assert without(gpu, field) == without(whole, field)
        assert [(fault.field, fault.reason) for fault in gpu.faults] == [(field, str(pynvml.NVMLError(code)))]
    assert any(field.replace("_", " ") in note for note in notes(report))


def test_a_lost_gpu_leaves_the_other() -> None:
    node = Node(nvmlDeviceGetMemoryInfo=pynvml.NVML_ERROR_GPU_IS_LOST)
    node.failing_handles = {"gpu0"}
    first, second = read(node).gpus
    assert first.memory is None
    assert second.memory is not None


def test_no_handle_leaves_the_index_and_the_reason() -> None:
    report = read(Node(nvmlDeviceGetHandleByIndex=pynvml.NVML_ERROR_NO_PERMISSION))
    assert [gpu.index for gpu in report.gpus] == [0, 1]
    assert report.gpus[0].faults[0].reason == "Insufficient Permissions"
    assert next(iter(all_cells(report).values()))[:4] == ("0", "?", "?", "?")


def test_a_board_without_its_own_memory_shows_the_hosts_and_says_so() -> None:
    report = read(Node(1, nvmlDeviceGetMemoryInfo=pynvml.NVML_ERROR_NOT_SUPPORTED))
    memory = report.gpus[0].memory
    assert memory is not None
    assert (memory.source, memory.shared_with_host, memory.total_bytes) == ("host", True, psutil.virtual_memory().total)
    assert "shared" in all_cells(report)["0"][2]
    assert any("host" in note for note in notes(report))


def test_torch_is_asked_before_the_host(tmp_path: Path) -> None:
    target = tmp_path / "python"
    line = (
        '[{"index": 0, "uuid": "", "name": "NVIDIA GB10", "compute_capability": "12.1", "total_bytes": 128,'
        ' "free_bytes": 100, "shared_with_host": true}]'
    )
    target.write_text(f"#!/bin/sh\necho 'verl-wizard-report:{line}'\n")
    target.chmod(0o755)
    memory = read(Node(1, nvmlDeviceGetMemoryInfo=pynvml.NVML_ERROR_NOT_SUPPORTED), python=str(target)).gpus[0].memory
    assert memory is not None
    assert (memory.source, memory.total_bytes, memory.free_bytes, memory.shared_with_host) == ("torch", 128, 100, True)


def test_a_driver_without_the_newer_memory_struct_still_tells() -> None:
    class Old(Node):
        def _nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> object:  # noqa: N802
            if version is not None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            return super()._nvmlDeviceGetMemoryInfo(handle)

    gpu = read(Old()).gpus[0]
    assert gpu.memory is not None
    assert (gpu.memory.total_bytes, gpu.faults) == (143771 * MIB, ())


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_a_board_that_knows_no_mig_has_none(code: int) -> None:
    gpu = read(Node(nvmlDeviceGetMigMode=code)).gpus[0]
    assert (gpu.mig_enabled, gpu.faults) == (False, ())


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "absent"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "absent"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "failed"),
    ],
)
def test_no_nvml_is_a_state_not_an_error(code: int, state: str) -> None:
    node = Node(nvmlInit=code)
    report = read(node)
    assert (report.nvml, report.reason) == (state, str(pynvml.NVMLError(code)))
    assert report.reason in summary(report)
    assert "nvmlShutdown" not in node.calls
    assert machine_from(report, read_host()).gpus_per_node == len(report.gpus)


def test_an_unanswered_link_question_is_not_pcie() -> None:
    report = read(Node(nvmlDeviceGetP2PStatus=pynvml.NVML_ERROR_UNKNOWN))
    assert report.links[0].kind == "unknown"
    assert machine_from(report, read_host()).interconnect == "unknown"


def test_pcie_is_told_by_the_common_ancestor() -> None:
    class Pcie(Node):
        def _nvmlDeviceGetP2PStatus(self, first: str, second: str, index: int) -> int:  # noqa: N802
            return pynvml.NVML_P2P_STATUS_NOT_SUPPORTED

    report = read(Pcie())
    assert (report.links[0].kind, report.links[0].path) == ("pcie", "SYS")
    assert link_lines(report) == ["every pair: PCIe SYS"]
    assert machine_from(report, read_host()).interconnect == "pcie"


def test_refresh_reads_only_what_changes() -> None:
    node = Node()
    with GpuReader(NO_TARGET, call=node, environ={}) as reader:
        before = reader.read()
        node.used_mib["gpu0"] = 1000
        node.calls.clear()
        after = reader.refresh(before)
    assert before.gpus[0].memory is not None
    assert after.gpus[0].memory is not None
    assert before.gpus[0].memory.free_bytes - after.gpus[0].memory.free_bytes == 1000 * MIB
    assert after.gpus[1] == before.gpus[1]
    assert after.links == before.links
    assert set(node.calls) == {
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlShutdown",
    }


def test_a_fault_appears_and_heals_between_refreshes() -> None:
    node = Node()
    with GpuReader(NO_TARGET, call=node, environ={}) as reader:
        report = reader.read()
        node.failing["nvmlDeviceGetUtilizationRates"] = pynvml.NVML_ERROR_UNKNOWN
        broken = reader.refresh(report)
        node.failing.clear()
        healed = reader.refresh(broken)
    assert [fault.field for fault in broken.gpus[0].faults] == ["utilisation_percent"]
    assert broken.gpus[0].memory == report.gpus[0].memory
    assert healed == report


def test_the_machine_is_what_cuda_sees() -> None:
    node = Node()
    node.used_mib = {"gpu0": 50000, "gpu1": 10}
    machine = machine_from(read(node), read_host(), nodes=2)
    assert (machine.gpus_per_node, machine.world_size, machine.interconnect) == (2, 4, "nvlink")
    assert machine.gpu_free_bytes == (143167 - 50000) * MIB
    hidden = machine_from(read(node, CUDA_VISIBLE_DEVICES="1"), read_host())
    assert (hidden.gpus_per_node, hidden.gpu_free_bytes, hidden.interconnect) == (1, (143167 - 10) * MIB, "unknown")


def test_processes_of_others_have_no_name_and_no_size() -> None:
    (line,) = process_lines(read(Node()))
    assert line.startswith("GPU 1: a process of another user or container (pid 1073741824)")


def test_mig_instances_with_gaps_between_their_slots() -> None:
    class Partitioned(Node):
        def _nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:  # noqa: N802
            return 1, 1

        def _nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
            return 7

        def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, number: int) -> str:  # noqa: N802
            if number not in (0, 3):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return f"mig{number}"

        def _nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
            return f"MIG-{handle}" if handle.startswith("mig") else super()._nvmlDeviceGetUUID(handle)

        def _nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:  # noqa: N802
            return int(handle[-1])

        def _nvmlDeviceGetComputeInstanceId(self, handle: str) -> int:  # noqa: N802
            return 0

        def _nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> object:  # noqa: N802
            return super()._nvmlDeviceGetMemoryInfo("gpu0", version)

    report = read(Partitioned(1), CUDA_VISIBLE_DEVICES="MIG-mig3")
    assert [instance.uuid for instance in report.gpus[0].instances] == ["MIG-mig0", "MIG-mig3"]
    assert report.gpus[0].faults == ()
    assert [row[-1] for row in all_cells(report).values()] == ["MIG", "hidden", "0"]
    assert machine_from(report, read_host()).gpus_per_node == 1
