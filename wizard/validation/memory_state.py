"""Memory at one moment, for a failure's event. Target interpreter; torch only where the rank has loaded it."""

from __future__ import annotations

import contextlib
import os
import resource
import sys

from wizard.probe.cgroup import read_limits


def memory_state() -> dict[str, int]:
    """Return what this process holds and may hold, in bytes, as far as it is known.

    `allocated_bytes`, `reserved_bytes` (torch's allocator), `free_bytes` and `total_bytes` (the driver) of the GPU;
    `resident_bytes` and `address_space_bytes` of the process, `host_free_bytes` (MemAvailable), and the limits
    `cgroup_limit_bytes`, `cgroup_left_bytes`, `address_space_limit_bytes` where there are any.
    """
    found = _host()
    # After a CUDA fault even these questions raise.
    with contextlib.suppress(Exception):
        found.update(_gpu())
    return found


def _gpu() -> dict[str, int]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return {
        "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "free_bytes": free_bytes,
        "total_bytes": total_bytes,
    }


def _host() -> dict[str, int]:
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/statm", encoding="ascii") as stream:
            pages = stream.read().split()
        found["address_space_bytes"] = int(pages[0]) * os.sysconf("SC_PAGE_SIZE")
        found["resident_bytes"] = int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
        with open("/proc/meminfo", encoding="ascii") as stream:
            lines = dict(line.split(":", 1) for line in stream)
        found["host_free_bytes"] = int(lines["MemAvailable"].split()[0]) * 1024
    limits = read_limits()
    if limits.memory_bytes is not None and limits.memory_left_bytes is not None:
        found |= {"cgroup_limit_bytes": limits.memory_bytes, "cgroup_left_bytes": limits.memory_left_bytes}
    space_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space_bytes != resource.RLIM_INFINITY:
        found["address_space_limit_bytes"] = space_bytes
    return found
