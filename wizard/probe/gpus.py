"""Reads this node's GPUs through NVML, without a CUDA context; torch or the host fill in what NVML does not give."""

from __future__ import annotations

import dataclasses
import glob
import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import psutil
import pynvml  # type: ignore[import-untyped]

from wizard.probe.ask import NoAnswer, ask
from wizard.probe.gpu_report import Fault, Gpu, GpuMemory, GpuProcess, GpuReport, MigInstance, Visible, VisibleDevice
from wizard.probe.nvml import FieldReader, NvmlCall, call_nvml
from wizard.probe.topology import read_links
from wizard.probe.visible_devices import visible_devices

_TORCH_SECONDS = 60.0
_DEVICE_NODES = ("/dev/nvidia[0-9]*", "/dev/nvgpu", "/dev/nvhost-gpu", "/dev/dxg")
"""Device files of boards whose NVML may be missing: containers without the library, Jetson, WSL."""


def read_gpus(python: str = "", *, stop: threading.Event | None = None) -> GpuReport:
    """Return everything known of this node's GPUs; never raises for what a driver does.

    Args:
        python: target interpreter, whose torch is asked only for fields that NVML fails to give.
        stop: set by another thread to give up waiting for torch.
    """
    with GpuReader(python, stop=stop) as reader:
        return reader.read()


class GpuReader:
    """An open NVML session: opening it wakes the driver up, so a live display keeps one."""

    def __init__(
        self,
        python: str = "",
        *,
        call: NvmlCall = call_nvml,
        environ: Mapping[str, str] = os.environ,
        stop: threading.Event | None = None,
    ) -> None:
        self._python = python
        self._call = call
        self._environ = environ
        self._stop = stop
        self._open_error: pynvml.NVMLError | None = None
        self._handles: dict[int, Any] = {}

    def __enter__(self) -> GpuReader:
        try:
            self._call("nvmlInit")
        except pynvml.NVMLError as error:
            self._open_error = error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open_error is None:
            FieldReader(self._call).quiet("nvmlShutdown")

    def read(self) -> GpuReport:
        """Read everything."""
        if self._open_error is not None:
            return self._without_nvml(self._open_error)
        reader = FieldReader(self._call)
        driver = reader.read("driver_version", "nvmlSystemGetDriverVersion")
        cuda = reader.read("cuda_version", "nvmlSystemGetCudaDriverVersion_v2")
        count = reader.read("count", "nvmlDeviceGetCount")
        gpus = tuple(self._gpu(index) for index in range(count or 0))
        visible = visible_devices(self._environ, gpus)
        gpus, torch_fault = self._completed(gpus, visible)
        return GpuReport(
            nvml="failed" if count is None else "ok",
            reason="" if count is not None else reader.faults[-1].reason,
            driver_version=driver or "",
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            gpus=gpus,
            links=read_links(reader, self._handles),
            visible=visible,
            faults=(*reader.faults, *torch_fault),
        )

    def refresh(self, report: GpuReport) -> GpuReport:
        """Read again what changes by the second: memory, utilisation and processes."""
        if report.nvml != "ok":
            return report
        return dataclasses.replace(report, gpus=tuple(self._refreshed(gpu) for gpu in report.gpus))

    def _refreshed(self, gpu: Gpu) -> Gpu:
        handle = self._handles.get(gpu.index)
        if handle is None:
            return gpu
        reader = FieldReader(self._call)
        now = _changing(reader, handle)
        fresh = {fault.field for fault in reader.faults} | now.keys()
        kept = tuple(fault for fault in gpu.faults if fault.field not in fresh)
        if now["memory"] is None and gpu.memory is not None and gpu.memory.source == "torch":
            now["memory"] = gpu.memory
        elif now["memory"] is None and "memory" in reader.unsupported:
            now["memory"] = _host_memory()
        return dataclasses.replace(gpu, **now, faults=(*kept, *reader.faults))

    def _gpu(self, index: int) -> Gpu:
        reader = FieldReader(self._call)
        handle = reader.read("handle", "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            return Gpu(index, faults=tuple(reader.faults))
        self._handles[index] = handle
        capability = reader.read("compute_capability", "nvmlDeviceGetCudaComputeCapability", handle)
        bus = reader.read("bus_id", "nvmlDeviceGetPciInfo", handle)
        mig = reader.optional("mig_enabled", (0, 0), "nvmlDeviceGetMigMode", handle)
        return Gpu(
            index,
            uuid=reader.read("uuid", "nvmlDeviceGetUUID", handle) or "",
            name=reader.read("name", "nvmlDeviceGetName", handle) or "",
            bus_id=_text(bus.busId) if bus is not None else "",
            compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
            mig_enabled=None if mig is None else bool(mig[0]),
            instances=_instances(reader, handle) if mig and mig[0] else (),
            **_changing(reader, handle),
            faults=tuple(reader.faults),
        )

    def _completed(self, gpus: tuple[Gpu, ...], visible: Visible) -> tuple[tuple[Gpu, ...], tuple[Fault, ...]]:
        """Fill what NVML did not give: from torch, then, on a board without memory of its own, from the host."""
        if all(gpu.memory and gpu.name and gpu.compute_capability for gpu in gpus):
            return gpus, ()
        fault: tuple[Fault, ...] = ()
        try:
            devices = self._ask_torch()
        except NoAnswer as error:
            devices, fault = [], (Fault("torch", str(error)),)
        by_index = {gpu.index: gpu for gpu in gpus}
        for device in devices:
            index = _index_of(device, gpus, visible)
            if index is not None:
                by_index[index] = _with_torch(by_index[index], device)
        return tuple(_with_host(gpu) for gpu in by_index.values()), fault

    def _without_nvml(self, error: pynvml.NVMLError) -> GpuReport:
        """Report the GPUs torch sees, if a device file says that there can be any."""
        absent = isinstance(error, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))
        gpus: tuple[Gpu, ...] = ()
        faults: tuple[Fault, ...] = ()
        if any(glob.glob(pattern) for pattern in _DEVICE_NODES):
            try:
                gpus = tuple(_with_torch(Gpu(device["index"]), device) for device in self._ask_torch())
            except NoAnswer as unanswered:
                faults = (Fault("torch", str(unanswered)),)
        # torch has applied the variable already: its numbering is what a CUDA process sees.
        visible = Visible(self._environ.get("CUDA_VISIBLE_DEVICES"), tuple(VisibleDevice(gpu.index) for gpu in gpus))
        return GpuReport("absent" if absent else "failed", str(error), gpus=gpus, visible=visible, faults=faults)

    def _ask_torch(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(
            self._python, "wizard.probe.torch_devices", timeout_seconds=_TORCH_SECONDS, stop=self._stop
        )
        return found


def _changing(reader: FieldReader, handle: Any) -> dict[str, Any]:
    utilisation = reader.read("utilisation_percent", "nvmlDeviceGetUtilizationRates", handle)
    return {
        "memory": _memory(reader, handle),
        "utilisation_percent": utilisation.gpu if utilisation is not None else None,
        "processes": _processes(reader, handle),
    }


def _memory(reader: FieldReader, handle: Any) -> GpuMemory | None:
    """Read the second version of the struct, which tells the driver's own share; old drivers know the first."""
    info = reader.quiet("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    if info is not None:
        return GpuMemory(info.total - info.reserved, info.free, "nvml")
    info = reader.read("memory", "nvmlDeviceGetMemoryInfo", handle)
    return None if info is None else GpuMemory(info.total, info.free, "nvml")


def _processes(reader: FieldReader, handle: Any) -> tuple[GpuProcess, ...]:
    used: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for process in reader.read("processes", f"nvmlDeviceGet{kind}RunningProcesses", handle) or ():
            known, now = used.get(process.pid), process.usedGpuMemory
            used[process.pid] = now if known is None else max(known, now or 0)
    return tuple(GpuProcess(pid, _process_name(pid), used[pid]) for pid in sorted(used))


def _process_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return ""


def _instances(reader: FieldReader, handle: Any) -> tuple[MigInstance, ...]:
    found = []
    for number in range(reader.read("instances", "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        try:
            instance = reader.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        except pynvml.NVMLError_NotFound:
            continue  # slots are numbered with gaps
        except pynvml.NVMLError as error:
            reader.faults.append(Fault("instances", str(error)))
            continue
        found.append(
            MigInstance(
                reader.read("instances", "nvmlDeviceGetUUID", instance) or "",
                reader.read("instances", "nvmlDeviceGetName", instance) or "",
                reader.read("instances", "nvmlDeviceGetGpuInstanceId", instance),
                reader.read("instances", "nvmlDeviceGetComputeInstanceId", instance),
                _memory(reader, instance),
            )
        )
    return tuple(found)


def _index_of(device: Mapping[str, Any], gpus: Sequence[Gpu], visible: Visible) -> int | None:
    """Return the NVML index of a torch device: by UUID, else by its place among the visible ones."""
    by_uuid = next((gpu.index for gpu in gpus if gpu.uuid and gpu.uuid == device["uuid"]), None)
    if by_uuid is not None or device["index"] >= len(visible.devices):
        return by_uuid
    place: int = device["index"]
    return visible.devices[place].gpu_index


def _with_torch(gpu: Gpu, device: Mapping[str, Any]) -> Gpu:
    memory = GpuMemory(device["total_bytes"], device["free_bytes"], "torch", device["shared_with_host"])
    return dataclasses.replace(
        gpu,
        uuid=gpu.uuid or device["uuid"],
        name=gpu.name or device["name"],
        compute_capability=gpu.compute_capability or device["compute_capability"],
        memory=gpu.memory or memory,
    )


def _with_host(gpu: Gpu) -> Gpu:
    """Give a board that has no memory of its own the host's; a board that failed to tell keeps None."""
    unsupported = str(pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
    if gpu.memory is None and Fault("memory", unsupported) in gpu.faults:
        return dataclasses.replace(gpu, memory=_host_memory())
    return gpu


def _host_memory() -> GpuMemory:
    memory = psutil.virtual_memory()
    return GpuMemory(memory.total, memory.available, "host", shared_with_host=True)


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value
