"""Memory, CPUs and disks that one node's training processes may use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from wizard.probe.cgroup import read_limits


@dataclass(frozen=True)
class Host:
    """This node. Sizes in bytes."""

    memory_bytes: int
    memory_source: Literal["cgroup", "MemTotal"]
    available_bytes: int
    """What new processes can take without swapping, within the cgroup's limit."""
    cpus: int
    """CPUs this process may use: its affinity, cut by the cgroup's quota."""
    swap_bytes: int
    shm_bytes: int
    """Size of /dev/shm, where NCCL and Ray's object store live; 0 without one."""
    shm_free_bytes: int


def read_host() -> Host:
    """Read this node; every value is what this process is allowed, not what the machine has."""
    memory = psutil.virtual_memory()
    limits = read_limits()
    limit, left = limits.memory_bytes, limits.memory_left_bytes
    limited = limit is not None and limit < memory.total
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shm_bytes, shm_free_bytes = _disk("/dev/shm")
    return Host(
        memory_bytes=limit if limited and limit is not None else memory.total,
        memory_source="cgroup" if limited else "MemTotal",
        available_bytes=min(memory.available, left) if limited and left is not None else memory.available,
        cpus=max(1, int(min(cpus, limits.cpus or cpus))),
        swap_bytes=psutil.swap_memory().total,
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
    )


def disk_free_bytes(path: Path) -> int:
    """Return what an unprivileged process can still write where `path` is or will be.

    Raises:
        OSError: no folder on the way to `path` can be read.
    """
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return psutil.disk_usage(str(existing)).free


def _disk(path: str) -> tuple[int, int]:
    """Return (size, free) of a mounted path, zeros without one."""
    try:
        usage = psutil.disk_usage(path)
    except OSError:
        return 0, 0
    return usage.total, usage.free
