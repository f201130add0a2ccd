"""Why a run's processes are gone without a word: what the kernel and the disk say. Runs in the wizard's process."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

from wizard.probe.cgroup import oom_counters, oom_kills
from wizard.validation.verdict import Verdict

FULL_BYTES = 16 << 10
"""With less room than this in the run folder, a rank cannot tell what happened to it."""

_KILLED_CODES = re.compile(rf"ended with code (?:{128 + signal.SIGKILL}|{-signal.SIGKILL})\b")


class KernelKills:
    """The kernel's kills for memory in the cgroups of a process, counted from now on."""

    def __init__(self, process: int) -> None:
        self._before = {counter: oom_kills(counter) for counter in oom_counters(process)}

    def place(self) -> str:
        """Return where the kernel has killed since: a cgroup, or the machine; empty when it has not."""
        for counter, before in self._before.items():
            if oom_kills(counter) > before:
                return "this machine" if counter.name == "vmstat" else f"cgroup {counter.parent}"
        return ""


def explain_loss(verdict: Verdict, folder: Path, kernel: KernelKills | None) -> Verdict:
    """Return the verdict with the reason that a lost rank could not tell itself."""
    if verdict.outcome != "lost":
        return verdict
    killed = "SIGKILL" in verdict.cause or _KILLED_CODES.search(verdict.cause) is not None
    place = kernel.place() if kernel is not None and killed else ""
    if place:
        return replace(verdict, cause=f"its process was killed by SIGKILL: out of memory in {place} (oom_kill)")
    if not folder.exists():
        return replace(verdict, cause=f"[Errno 2] No such file or directory: its run folder {folder} was removed")
    if _room_bytes(folder) < FULL_BYTES:
        return replace(verdict, cause=f"[Errno 28] No space left on device: {folder}")
    return verdict


def _room_bytes(folder: Path) -> int:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return FULL_BYTES
    return disk.f_bavail * disk.f_frsize
