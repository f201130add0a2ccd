"""A node's NVML answers as a table, for tests of what happens when single calls fail.

This tests our handling of `pynvml.NVMLError`, not NVML: what NVML itself answers is tested on a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 1 << 20


class Node:
    """Two H200-like GPUs joined by NVLink through a switch; `failing` maps a function to the NVML error it raises."""

    def __init__(self, count: int = 2, **failing: int) -> None:
        self.count = count
        self.failing = failing
        self.failing_handles: set[str] = set()
        self.calls: list[str] = []
        self.used_mib = {f"gpu{index}": 0 for index in range(count)}

    def __call__(self, function: str, *arguments: Any) -> Any:
        self.calls.append(function)
        lost = self.failing_handles & {argument for argument in arguments if isinstance(argument, str)}
        if function in self.failing and (lost or not self.failing_handles):
            raise pynvml.NVMLError(self.failing[function])
        return getattr(self, f"_{function}")(*arguments)

    def _nvmlInit(self) -> None: ...  # noqa: N802

    def _nvmlShutdown(self) -> None: ...  # noqa: N802

    def _nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.95.05"

    def _nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13000

    def _nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"gpu{index}"

    def _nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return f"GPU-0000000{handle[-1]}-0000-0000-0000-000000000000"

    def _nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return "NVIDIA H200"

    def _nvmlDeviceGetPciInfo(self, handle: str) -> Any:  # noqa: N802
        number = int(handle[-1])
        return SimpleNamespace(busId=f"00000000:0{number}:00.0".encode(), domain=0, bus=number, device=0)

    def _nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:  # noqa: N802
        return 9, 0

    def _nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:  # noqa: N802
        return 0, 0

    def _nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=7, memory=1)

    def _nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:  # noqa: N802
        used = self.used_mib[handle]
        if version is None:
            return SimpleNamespace(total=143771 * MIB, free=(143167 - used) * MIB, used=(604 + used) * MIB)
        return SimpleNamespace(
            total=143771 * MIB, reserved=604 * MIB, free=(143167 - used) * MIB, used=used * MIB, version=version
        )

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=2**30, usedGpuMemory=None)] if handle == "gpu1" else []

    def _nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return []

    def _nvmlDeviceGetP2PStatus(self, first: str, second: str, index: int) -> int:  # noqa: N802
        return pynvml.NVML_P2P_STATUS_OK

    def _nvmlDeviceGetTopologyCommonAncestor(self, first: str, second: str) -> int:  # noqa: N802
        return pynvml.NVML_TOPOLOGY_SYSTEM

    def _nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:  # noqa: N802
        if link >= 18:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: str, link: int) -> int:  # noqa: N802
        return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
