"""Limits read from trees laid out as the kernel lays them out."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from wizard.probe.cgroup import Limits, read_limits
from wizard.probe.host import disk_free_bytes, read_host

GIB = 1 << 30


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_v2_takes_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    tree(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/system.slice/slurm/job_7",
            "sys/fs/cgroup/system.slice/slurm/job_7/memory.max": "max",
            "sys/fs/cgroup/system.slice/slurm/memory.max": str(64 * GIB),
            "sys/fs/cgroup/system.slice/slurm/memory.current": str(30 * GIB),
            "sys/fs/cgroup/system.slice/slurm/memory.stat": f"anon {10 * GIB}\ninactive_file {5 * GIB}",
            "sys/fs/cgroup/system.slice/memory.max": str(128 * GIB),
            "sys/fs/cgroup/system.slice/slurm/job_7/cpu.max": "400000 100000",
            "sys/fs/cgroup/system.slice/cpu.max": "max 100000",
        },
    )
    assert read_limits(tmp_path) == Limits(64 * GIB, (64 - 30 + 5) * GIB, 4.0)


def test_v2_inside_a_container_has_its_files_at_the_root(tmp_path: Path) -> None:
    tree(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": str(8 * GIB),
            "sys/fs/cgroup/memory.current": str(GIB),
            "sys/fs/cgroup/cpu.max": "150000 100000",
        },
    )
    assert read_limits(tmp_path) == Limits(8 * GIB, 7 * GIB, 1.5)


def test_v1_with_the_hosts_path_that_is_not_mounted_here(tmp_path: Path) -> None:
    tree(
        tmp_path,
        **{
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(16 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(6 * GIB),
            "sys/fs/cgroup/memory/memory.stat": f"cache 1\ntotal_inactive_file {2 * GIB}",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert read_limits(tmp_path) == Limits(16 * GIB, 12 * GIB, 2.0)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/cpu.max": "max 100000"},
        {
            "proc/self/cgroup": "4:memory:/\n2:cpu:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        {"proc/self/cgroup": "garbage", "sys/fs/cgroup/memory.max": "\x00", "sys/fs/cgroup/cpu.max": "1"},
    ],
)
def test_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert read_limits(tree(tmp_path, **files)) == Limits()


def test_a_limit_never_says_more_than_the_machine_has() -> None:
    host = read_host()
    assert 0 < host.available_bytes <= host.memory_bytes <= psutil.virtual_memory().total
    assert 1 <= host.cpus <= (psutil.cpu_count() or 1)


def test_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    there = psutil.disk_usage(str(tmp_path)).free
    assert disk_free_bytes(tmp_path / "run" / "checkpoints") == pytest.approx(there, rel=0.05)
