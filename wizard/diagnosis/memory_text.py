"""What a failure's memory figures say, and the Plan's GPU they tell of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wizard.plan import Plan
from wizard.text import gib

NOTABLE_BYTES = 1 << 30
"""What other processes, or free but scattered memory, have to take to be worth a word."""


def memory_text(memory: Mapping[str, int], cause: str) -> str:
    """Return the memory at the moment of an out-of-memory failure in a sentence; empty for any other cause."""
    if "oom" not in cause or not memory:
        return ""
    return _gpu(memory) if cause.startswith("gpu") and "total_bytes" in memory else _host(memory)


def _gpu(memory: Mapping[str, int]) -> str:
    allocated, reserved, free, total = (
        memory.get(f"{name}_bytes", 0) for name in ("allocated", "reserved", "free", "total")
    )
    told = [f"{gib(allocated)} were allocated, {gib(free)} of {gib(total)} free"]
    if reserved - allocated > NOTABLE_BYTES:
        told.append(f"{gib(reserved - allocated)} reserved by torch and not in use (fragments)")
    if total - free - reserved > NOTABLE_BYTES:
        told.append(f"{gib(total - free - reserved)} taken by the CUDA context and other processes")
    return f"{', '.join(told)}."


def _host(memory: Mapping[str, int]) -> str:
    told = [f"The process held {gib(memory.get('resident_bytes', 0))}"]
    if "cgroup_limit_bytes" in memory:
        left = gib(memory.get("cgroup_left_bytes", 0))
        told.append(f"its cgroup had {left} left of {gib(memory['cgroup_limit_bytes'])}")
    if "address_space_limit_bytes" in memory:
        told.append(f"its address space is limited to {gib(memory['address_space_limit_bytes'])} (ulimit -v)")
    if "host_free_bytes" in memory:
        told.append(f"the machine had {gib(memory['host_free_bytes'])} available")
    return f"{', '.join(told)}."


def with_gpu(plan: Plan, memory: Mapping[str, int]) -> Plan:
    """Return the Plan with the memory of the GPU that ran out, where the Plan does not know its GPU."""
    total = memory.get("total_bytes", 0)
    if plan.machine.gpu_memory_bytes or not total:
        return plan
    return replace(plan, machine=replace(plan.machine, gpu_memory_bytes=total))
