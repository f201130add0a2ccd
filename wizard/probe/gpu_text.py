"""A GPU report in words and cells, for the screen and for `doctor`."""

from __future__ import annotations

from collections.abc import Sequence

from wizard.probe.gpu_report import Gpu, GpuMemory, GpuReport, MigInstance
from wizard.text import gib

COLUMNS = ("GPU", "name", "total", "free", "cc", "busy", "CUDA")
UNKNOWN = "?"


def gpu_cells(report: GpuReport, gpu: Gpu) -> tuple[str, ...]:
    """Return one GPU's cells in the order of `COLUMNS`; `?` stands for what could not be read."""
    busy = f"{gpu.utilisation_percent}%" if gpu.utilisation_percent is not None else UNKNOWN
    place = _place(report, gpu.index)
    head = (str(gpu.index), gpu.name or UNKNOWN)
    return (*head, *_memory_cells(gpu.memory), gpu.compute_capability or UNKNOWN, busy, place)


def instance_cells(report: GpuReport, gpu: Gpu, instance: MigInstance) -> tuple[str, ...]:
    """Return the cells of a MIG instance, shown under its GPU."""
    name = f"└ {instance.name or instance.uuid or UNKNOWN}"
    place = _place(report, gpu.index, instance.uuid)
    return ("", name, *_memory_cells(instance.memory), gpu.compute_capability or UNKNOWN, "", place)


def all_cells(report: GpuReport) -> dict[str, tuple[str, ...]]:
    """Return every row of the table by a key that stays the same between refreshes."""
    rows: dict[str, tuple[str, ...]] = {}
    for gpu in report.gpus:
        rows[str(gpu.index)] = gpu_cells(report, gpu)
        for number, instance in enumerate(gpu.instances):
            rows[f"{gpu.index}.{number}"] = instance_cells(report, gpu, instance)
    return rows


def _memory_cells(memory: GpuMemory | None) -> tuple[str, str]:
    if memory is None:
        return UNKNOWN, UNKNOWN
    shared = " shared" if memory.shared_with_host else ""
    return gib(memory.total_bytes) + shared, gib(memory.free_bytes)


def _place(report: GpuReport, index: int, instance: str = "") -> str:
    """Return the number CUDA gives the device, or that it is hidden."""
    numbers = [
        str(number)
        for number, device in enumerate(report.visible.devices)
        if (device.gpu_index, device.instance_uuid) == (index, instance)
    ]
    partitioned = not instance and any(device.gpu_index == index for device in report.visible.devices)
    return numbers[0] if numbers else "MIG" if partitioned else "hidden"


def process_lines(report: GpuReport) -> list[str]:
    """Return one line for every process that holds GPU memory."""
    return [
        f"GPU {gpu.index}: {process.name or 'a process of another user or container'} (pid {process.pid}) holds "
        + (gib(process.used_bytes) if process.used_bytes is not None else "memory the driver does not tell")
        for gpu in report.gpus
        for process in gpu.processes
    ]


def link_lines(report: GpuReport) -> list[str]:
    """Return how GPUs are connected: one line when all pairs are alike, else one a kind."""
    pairs: dict[str, list[str]] = {}
    for link in report.links:
        word = {"nvlink": "NVLink", "pcie": "PCIe", "unknown": "unknown link"}[link.kind]
        pairs.setdefault(f"{word} {link.path}".strip(), []).append(f"{link.first}-{link.second}")
    if len(pairs) == 1:
        return [f"every pair: {next(iter(pairs))}"]
    return [f"{kind}: {', '.join(members)}" for kind, members in pairs.items()]


def summary(report: GpuReport) -> str:
    """Return driver and CUDA, or why there is nothing to show."""
    if report.nvml == "ok":
        driver, cuda = report.driver_version or UNKNOWN, report.cuda_version or UNKNOWN
        count = len(report.gpus)
        return f"{count} GPU{'' if count == 1 else 's'}, driver {driver}, CUDA up to {cuda}"
    if report.gpus:
        return f"No NVML ({report.reason}); what follows is from torch."
    if report.nvml == "absent":
        return f"No NVIDIA driver here ({report.reason}). Validate on the CPU, or describe the machine you plan for."
    return f"The driver does not answer ({report.reason}). See nvidia-smi, or describe the machine you plan for."


def notes(report: GpuReport) -> list[str]:
    """Return what a person should know besides the numbers."""
    found = [report.visible.problem] if report.visible.problem else []
    if any(gpu.memory is not None and gpu.memory.shared_with_host for gpu in report.gpus):
        found.append("Shared memory is the host's: what the CPU's processes use is missing on the GPU.")
    found += _faults("node", [(fault.field, fault.reason) for fault in report.faults])
    for gpu in report.gpus:
        found += _faults(f"GPU {gpu.index}", [(fault.field, fault.reason) for fault in gpu.faults])
    return found


def _faults(owner: str, faults: Sequence[tuple[str, str]]) -> list[str]:
    """Return one line a reason: a lost GPU fails every field the same way."""
    fields: dict[str, list[str]] = {}
    for field, reason in dict.fromkeys(faults):
        fields.setdefault(reason, []).append(field.replace("_", " "))
    return [f"{owner}: {', '.join(names)} not read: {reason}" for reason, names in fields.items()]
