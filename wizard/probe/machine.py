"""The machine a run is planned for: from the probes, or from a line the person typed."""

from __future__ import annotations

import dataclasses
import re

from wizard.facts import Interconnect, Machine
from wizard.probe.boards import BOARDS, board, memory_of_label
from wizard.probe.gpu_report import GpuReport
from wizard.probe.gpus import read_gpus
from wizard.probe.host import Host, read_host

FORM = "8x80GB, 8xH100, 8x80GB,cc9.0,nvlink,ram=512GB,cpus=96 or cpu"
"""How a machine is described, for messages and placeholders."""

_GPUS = re.compile(r"(\d+)\s*[x×*]\s*(.+)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(gib|gb|g|tib|tb|mib|mb|b)", re.IGNORECASE)
_CAPABILITY = re.compile(r"(?:cc|sm)\s*[=_]?\s*(\d+)\.?(\d)", re.IGNORECASE)
_OPTION = re.compile(r"(ram|cpus)\s*=\s*(.+)", re.IGNORECASE)
_UNITS = {"b": 1, "g": 10**9, "gb": 10**9, "gib": 1 << 30, "tb": 10**12, "tib": 1 << 40, "mb": 10**6, "mib": 1 << 20}
_MOST_GPUS = 1024
_MOST_NODES = 100_000


class MachineError(ValueError):
    """A description that cannot be read; the message is for the person."""


def probe_machine() -> Machine:
    """Return this node as CUDA processes would see it."""
    return machine_from(read_gpus(), read_host())


def machine_from(gpus: GpuReport, host: Host, nodes: int = 1) -> Machine:
    """Return `nodes` nodes like the probed one; GPUs hidden by `CUDA_VISIBLE_DEVICES` do not count.

    Where GPUs differ, the weakest decides, since FSDP gives each the same work. A memory that could not be read
    is 0, which means unknown.
    """
    devices = gpus.visible.devices
    seen = {device.gpu_index for device in devices}
    cards = [gpus.gpu(device.gpu_index) for device in devices]
    memories = [gpus.memory_of(device) for device in devices]
    known = [memory for memory in memories if memory is not None]
    capabilities = [card.compute_capability for card in cards if card.compute_capability]
    return Machine(
        nodes=_node_count(nodes),
        gpus_per_node=len(devices),
        gpu_name=" / ".join(dict.fromkeys(card.name for card in cards if card.name)),
        gpu_memory_bytes=min((memory.total_bytes for memory in known), default=0),
        gpu_free_bytes=min((memory.free_bytes for memory in known), default=0),
        compute_capability=min(capabilities, key=_capability_order, default=""),
        interconnect=_interconnect(gpus, seen),
        host_memory_bytes=host.memory_bytes,
        host_cpus=host.cpus,
    )


def _interconnect(gpus: GpuReport, seen: set[int]) -> Interconnect:
    kinds: set[Interconnect] = {link.kind for link in gpus.links if link.first in seen and link.second in seen}
    return kinds.pop() if len(kinds) == 1 else "pcie" if "pcie" in kinds else "unknown"


def _capability_order(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def parse_machine(text: str, nodes: int = 1) -> Machine:
    """Read a description such as `8x80GB`, `8xH100`, `8× 80 GB, cc 9.0, NVLink` or `cpu`.

    Host facts stay 0, which means unknown, unless given.
    A GPU's `GB` is read as its maker means it: the memory boards of that label report. `GiB` is exact, and
    `ram=` is decimal for GB as its label is.

    Raises:
        MachineError: the text is none of these; the message says which part and how it may look.
    """
    first, *rest = [part.strip() for part in text.split(",")]
    machine = dataclasses.replace(_gpus(first), nodes=_node_count(nodes))
    for part in rest:
        machine = _with_part(machine, part)
    return machine


def parse_nodes(text: str) -> int:
    """Read a number of nodes.

    Raises:
        MachineError: the text is no number, or not one that a run can have.
    """
    if not text.strip().isdecimal():
        raise MachineError(f"nodes = {text!r} is not a number. A run needs 1 to {_MOST_NODES}.")
    return _node_count(int(text))


def machine_text(machine: Machine) -> str:
    """Return a description that `parse_machine` reads back; free memory and names of no known board are not in it."""
    known = board(machine.gpu_name)
    if not machine.gpus_per_node:
        parts = ["cpu"]
    elif known is not None and known.memory_bytes == machine.gpu_memory_bytes:
        parts = [f"{machine.gpus_per_node}x{known.name}"]
    else:
        size, rest = divmod(machine.gpu_memory_bytes, 1 << 20)
        memory = f"{machine.gpu_memory_bytes}B" if rest else f"{size}MiB"
        parts = [f"{machine.gpus_per_node}x{memory}"]
    if machine.compute_capability:
        parts.append(f"cc{machine.compute_capability}")
    if machine.interconnect != "unknown":
        parts.append(machine.interconnect)
    if machine.host_memory_bytes:
        parts.append(f"ram={machine.host_memory_bytes}B")
    if machine.host_cpus:
        parts.append(f"cpus={machine.host_cpus}")
    return ",".join(parts)


def same_hardware(first: Machine, second: Machine) -> bool:
    """Return whether two machines differ in nothing but nodes and memory that happens to be free."""
    one, other = (dataclasses.replace(machine, nodes=1, gpu_free_bytes=0) for machine in (first, second))
    return one == other


def _gpus(part: str) -> Machine:
    if part.lower() in ("0", "cpu"):
        return Machine()
    match = _GPUS.fullmatch(part)
    if match is None:
        raise MachineError(f"{part!r} names no GPUs. Write the machine as {FORM}.")
    count, what = int(match.group(1)), match.group(2).strip()
    if not 1 <= count <= _MOST_GPUS:
        raise MachineError(f"{part!r}: a node has 1 to {_MOST_GPUS} GPUs; write `cpu` for none.")
    size = _SIZE.fullmatch(what)
    if size is not None:
        memory = _gpu_memory(float(size.group(1)), size.group(2).lower())
        if not memory:
            raise MachineError(f"{part!r}: a GPU has more than 0 bytes of memory. Write the machine as {FORM}.")
        return Machine(gpus_per_node=count, gpu_memory_bytes=memory, gpu_free_bytes=memory)
    named = board(what)
    if named is None:
        names = ", ".join(entry.name for entry in BOARDS)
        raise MachineError(f"{what!r} is neither a size such as 80GB nor a known board ({names}).")
    return Machine(
        gpus_per_node=count,
        gpu_name=named.name,
        gpu_memory_bytes=named.memory_bytes,
        gpu_free_bytes=named.memory_bytes,
        compute_capability=named.compute_capability,
        interconnect=named.interconnect,
    )


def _gpu_memory(amount: float, unit: str) -> int:
    return memory_of_label(amount) if unit in ("gb", "g") else int(amount * _UNITS[unit])


def _with_part(machine: Machine, part: str) -> Machine:
    kind = part.lower()
    if kind in ("nvlink", "pcie"):
        return dataclasses.replace(machine, interconnect="nvlink" if kind == "nvlink" else "pcie")
    capability = _CAPABILITY.fullmatch(part)
    if capability is not None:
        return dataclasses.replace(machine, compute_capability=".".join(capability.groups()))
    option = _OPTION.fullmatch(part)
    if option is not None:
        name, value = option.group(1).lower(), option.group(2).strip()
        size = _SIZE.fullmatch(value)
        if name == "cpus" and value.isdigit() and int(value):
            return dataclasses.replace(machine, host_cpus=int(value))
        if name == "ram" and size is not None:
            return dataclasses.replace(
                machine, host_memory_bytes=int(float(size.group(1)) * _UNITS[size.group(2).lower()])
            )
    raise MachineError(f"{part!r} cannot be read. After the GPUs come cc9.0, nvlink or pcie, ram=512GB, cpus=96.")


def _node_count(nodes: int) -> int:
    if not 1 <= nodes <= _MOST_NODES:
        raise MachineError(f"{nodes} nodes: a run needs 1 to {_MOST_NODES}.")
    return nodes
