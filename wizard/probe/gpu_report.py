"""What is known of this node's GPUs. A field that could not be read is None or empty and named in `faults`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wizard.facts import Interconnect


@dataclass(frozen=True)
class Fault:
    """One field that could not be read, and what the driver said."""

    field: str
    reason: str


@dataclass(frozen=True)
class GpuMemory:
    """Memory a CUDA process can allocate from, in bytes."""

    total_bytes: int
    """Without what the driver keeps for itself, so that it equals `torch.cuda.mem_get_info`'s total."""
    free_bytes: int
    source: Literal["nvml", "torch", "host"]
    shared_with_host: bool = False
    """The GPU allocates from the host's memory: what the CPU uses is missing here."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    """Empty when the process belongs to another container or user."""
    used_bytes: int | None


@dataclass(frozen=True)
class MigInstance:
    """One MIG compute instance: what CUDA enumerates in place of a partitioned GPU."""

    uuid: str
    name: str
    gpu_instance_id: int | None
    compute_instance_id: int | None
    memory: GpuMemory | None


@dataclass(frozen=True)
class Gpu:
    """One physical GPU, by its NVML index."""

    index: int
    uuid: str = ""
    name: str = ""
    bus_id: str = ""
    memory: GpuMemory | None = None
    compute_capability: str = ""
    """`major.minor`."""
    utilisation_percent: int | None = None
    """Share of the last sampling period in which a kernel ran."""
    processes: tuple[GpuProcess, ...] = ()
    mig_enabled: bool | None = None
    instances: tuple[MigInstance, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Link:
    """How two GPUs reach each other."""

    first: int
    second: int
    kind: Interconnect
    path: str
    """nvidia-smi's word: `NV18` (18 NVLinks), `PIX`, `PXB`, `PHB`, `NODE` or `SYS`; empty when unknown."""


@dataclass(frozen=True)
class VisibleDevice:
    """One device a CUDA process enumerates: a GPU, or a MIG instance of it."""

    gpu_index: int
    instance_uuid: str = ""


@dataclass(frozen=True)
class Visible:
    """What `CUDA_VISIBLE_DEVICES` leaves, in CUDA's order."""

    setting: str | None
    """The variable; None when unset."""
    devices: tuple[VisibleDevice, ...] = ()
    problem: str = ""
    """What the setting does against its probable intention, with the remedy."""


@dataclass(frozen=True)
class GpuReport:
    """All GPUs of this node. No NVML is a normal state: a laptop, a login node."""

    nvml: Literal["ok", "absent", "failed"]
    reason: str = ""
    """Why NVML gave nothing."""
    driver_version: str = ""
    cuda_version: str = ""
    """Newest CUDA the driver supports, `major.minor`."""
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    visible: Visible = Visible(None)
    faults: tuple[Fault, ...] = ()

    def gpu(self, index: int) -> Gpu:
        """Return the GPU with that NVML index."""
        return next(gpu for gpu in self.gpus if gpu.index == index)

    def memory_of(self, device: VisibleDevice) -> GpuMemory | None:
        """Return the memory of a visible device: the instance's where it is one."""
        gpu = self.gpu(device.gpu_index)
        if not device.instance_uuid:
            return gpu.memory
        return next(instance.memory for instance in gpu.instances if instance.uuid == device.instance_uuid)
