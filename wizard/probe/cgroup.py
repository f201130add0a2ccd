"""Limits a container, a batch job or systemd puts on this process: cgroup v1 and v2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of the page size."""


@dataclass(frozen=True)
class Limits:
    """The tightest limits on the way from this process's group to the root; None where there is none."""

    memory_bytes: int | None = None
    memory_left_bytes: int | None = None
    """What is left until the limit, page cache that can be dropped counted as left."""
    cpus: float | None = None


def read_limits(root: Path = Path("/")) -> Limits:
    """Read the limits of this process; `root` is where `proc` and `sys` are mounted."""
    memory: list[tuple[int, int]] = []
    cpus: list[float] = []
    for controllers, path in _memberships(root / "proc/self/cgroup"):
        for controller in controllers or ("",):
            mount = root / "sys/fs/cgroup" / controller
            for group in _up_to(mount, path):
                if controller in ("", "memory") and (found := _memory(group)):
                    memory.append(found)
                if controller in ("", "cpu") and (quota := _cpus(group)):
                    cpus.append(quota)
    limit = min((limit for limit, _ in memory), default=None)
    left = min((max(0, limit - used) for limit, used in memory), default=None)
    return Limits(limit, left, min(cpus, default=None))


def oom_counters(process: int, root: Path = Path("/")) -> tuple[Path, ...]:
    """Return the files that count the kernel's kills for memory: of the process's cgroups up, then of the machine."""
    found: list[Path] = []
    for controllers, path in _memberships(root / f"proc/{process}/cgroup"):
        for controller in controllers or ("",):
            if controller in ("", "memory"):
                groups = _up_to(root / "sys/fs/cgroup" / controller, path)
                found += [group / name for group in groups for name in ("memory.events", "memory.oom_control")]
    return (*filter(Path.exists, found), root / "proc/vmstat")


def oom_kills(counter: Path) -> int:
    """Return a counter's value; 0 where the kernel does not tell."""
    count = _entries(counter).get("oom_kill", "")
    return int(count) if count.isdigit() else 0


def _entries(file: Path) -> dict[str, str]:
    return dict(line.split() for line in _read(file).splitlines() if line.count(" ") == 1)


def _memberships(file: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (controllers, path in their hierarchy); no controller for v2's one hierarchy."""
    for line in _read(file).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield tuple(name for name in controllers.split(",") if name in ("memory", "cpu")) if controllers else (), path


def _up_to(mount: Path, path: str) -> Iterator[Path]:
    """Yield the group's folder and its parents; inside a container the path may be the host's and not exist here."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _memory(group: Path) -> tuple[int, int] | None:
    """Return (limit, memory in use that cannot be dropped) in bytes."""
    for limit_file, usage_file, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _read(group / limit_file)
        if limit.isdigit() and int(limit) < _NO_LIMIT_BYTES:
            usage = _read(group / usage_file)
            dropped = int(_entries(group / "memory.stat").get(inactive, 0))
            return int(limit), (int(usage) if usage.isdigit() else 0) - dropped
    return None


def _cpus(group: Path) -> float | None:
    quota, _, period = _read(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
