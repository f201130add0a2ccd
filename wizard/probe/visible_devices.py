"""Which devices `CUDA_VISIBLE_DEVICES` leaves.

Sources: CUDA C++ Programming Guide, appendix "CUDA environment variables" (order, abbreviated UUIDs, an invalid
entry ends the list); torch 2.13 `torch/cuda/__init__.py`, `_parse_visible_devices` and
`_transform_uuid_to_ordinals` (strtoul reading of indices, a repeated entry leaves nothing, an ambiguous UUID is
invalid, the first entry decides the kind of all); MIG User Guide, "CUDA device enumeration" (a process enumerates
one compute instance, and no whole GPU beside it).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from wizard.probe.gpu_report import Gpu, MigInstance, Visible, VisibleDevice

_INDEX = re.compile(r"\s*([+-]?\d+)")
_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)$")
_EMPTY = "CUDA_VISIBLE_DEVICES is {!r}: CUDA sees no GPU. Unset it, or name the GPUs."


def visible_devices(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> Visible:
    """Return the devices a CUDA process started with `environ` would enumerate, in its order."""
    setting = environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        devices, problem = _as_enumerated([VisibleDevice(gpu.index) for gpu in gpus], gpus)
        return Visible(None, devices, problem)
    chosen, problem = _chosen(setting, gpus)
    devices, partition_problem = _as_enumerated(chosen, gpus)
    return Visible(setting, devices, problem or partition_problem or _order_problem(setting, environ, gpus))


def _chosen(setting: str, gpus: Sequence[Gpu]) -> tuple[list[VisibleDevice], str]:
    entries = setting.split(",")
    read: Callable[[str], VisibleDevice | None]
    if setting.startswith("GPU-"):
        kind, read = "GPU-", lambda entry: _by_uuid(entry, gpus)
    elif setting.startswith("MIG-"):
        kind, read = "MIG-", lambda entry: _by_instance(entry, gpus)
    else:
        return _by_indices(setting, entries, gpus)
    same_kind = entries[: next((at for at, entry in enumerate(entries) if not entry.startswith(kind)), len(entries))]
    if len(set(same_kind)) < len(same_kind):
        return [], _repeated(setting)
    devices: list[VisibleDevice] = []
    for entry in entries:
        device = read(entry) if entry.startswith(kind) else None
        if device is None:
            return devices, _invalid(setting, entry, len(devices), "no device here, or more than one, has that UUID")
        if device in devices:
            return [], _repeated(setting)
        devices.append(device)
    return devices, ""


def _by_indices(setting: str, entries: Sequence[str], gpus: Sequence[Gpu]) -> tuple[list[VisibleDevice], str]:
    indices: list[int] = []
    ended_by: str | None = None
    for entry in entries:
        match = _INDEX.match(entry)
        index = int(match.group(1)) if match else -1
        if index in indices:
            return [], _repeated(setting)
        if index < 0:
            ended_by = entry
            break
        indices.append(index)
    known = {gpu.index for gpu in gpus}
    count = next((at for at, index in enumerate(indices) if index not in known), len(indices))
    devices = [VisibleDevice(index) for index in indices[:count]]
    if count < len(indices):
        there = f"the GPUs here are 0 to {max(known)}" if known else "there is no GPU here"
        return devices, _invalid(setting, str(indices[count]), count, there)
    if ended_by is None:
        return devices, ""
    if not devices:
        return [], _EMPTY.format(setting)
    return devices, _invalid(setting, ended_by, count, "it is not an index")


def _by_uuid(entry: str, gpus: Sequence[Gpu]) -> VisibleDevice | None:
    found = [VisibleDevice(gpu.index) for gpu in gpus if gpu.uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None


def _by_instance(entry: str, gpus: Sequence[Gpu]) -> VisibleDevice | None:
    """Read `MIG-<instance UUID>`, or `MIG-<GPU UUID>/<GPU instance>/<compute instance>` of drivers before 470."""
    old = _OLD_MIG.match(entry)

    def named(gpu: Gpu, instance: MigInstance) -> bool:
        if old is None:
            return instance.uuid.startswith(entry)
        ids = (instance.gpu_instance_id, instance.compute_instance_id)
        return gpu.uuid.startswith(old.group(1)) and ids == (int(old.group(2)), int(old.group(3)))

    found = [VisibleDevice(g.index, i.uuid) for g in gpus for i in g.instances if named(g, i)]
    return found[0] if len(found) == 1 else None


def _as_enumerated(chosen: Sequence[VisibleDevice], gpus: Sequence[Gpu]) -> tuple[tuple[VisibleDevice, ...], str]:
    """Put a partitioned GPU's first instance in its place, then keep what one process may enumerate."""
    by_index = {gpu.index: gpu for gpu in gpus}
    devices: list[VisibleDevice] = []
    bare = ""
    for device in chosen:
        gpu = by_index[device.gpu_index]
        if device.instance_uuid or not gpu.mig_enabled:
            devices.append(device)
        elif gpu.instances:
            devices.append(VisibleDevice(gpu.index, gpu.instances[0].uuid))
        else:
            bare = (
                f"GPU {gpu.index} is in MIG mode without an instance, so CUDA does not see it. Create one "
                "(nvidia-smi mig -cgi … -C) or switch MIG off (nvidia-smi -mig 0)."
            )
    instances = [device for device in devices if device.instance_uuid]
    if instances and len(devices) > 1:
        return (instances[0],), (
            f"CUDA enumerates one MIG instance a process and no GPU beside it: {instances[0].instance_uuid} stays, "
            "the others are hidden. FSDP over several GPUs needs MIG switched off."
        )
    return tuple(devices), bare


def _order_problem(setting: str, environ: Mapping[str, str], gpus: Sequence[Gpu]) -> str:
    """NVML counts by PCI bus; CUDA puts the fastest first unless told otherwise."""
    by_uuid = setting.startswith(("GPU-", "MIG-"))
    if by_uuid or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) < 2:
        return ""
    return (
        f"CUDA_VISIBLE_DEVICES={setting!r} counts with the fastest GPU first, this list by PCI bus. "
        "Set CUDA_DEVICE_ORDER=PCI_BUS_ID so that both mean the same GPU."
    )


def _repeated(setting: str) -> str:
    return f"CUDA_VISIBLE_DEVICES={setting!r} names a device twice: CUDA then sees no GPU at all. Name each once."


def _invalid(setting: str, entry: str, before: int, why: str) -> str:
    return (
        f"CUDA_VISIBLE_DEVICES={setting!r}: {entry!r} is invalid ({why}), and CUDA drops it with all that follows; "
        f"{before} {'stays' if before == 1 else 'stay'}. Correct or remove it."
    )
