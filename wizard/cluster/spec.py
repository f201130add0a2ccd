"""What a cluster check is to do. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from wizard.validation.spec import Device

STEPS = ("facts", "meet", "clocks", "compute", "bandwidth")
"""All steps in order."""


@dataclass(frozen=True)
class CheckSpec:
    """One check."""

    worker: ClassVar[str] = "wizard.cluster.worker"

    world_size: int
    device: Device
    model_path: str = ""
    """Folder that every node should see alike, `~` being each node's own home; empty for none."""
    step_limit_seconds: float = 90.0
    """Longer than torchruns wait for each other, who then tell that a node did not come."""
    tolerant: bool = True
    """Drivers let nodes that differ begin: the check tells how they do."""


def read_check(path: Path) -> CheckSpec:
    """Read a spec that a launcher wrote."""
    return CheckSpec(**json.loads(path.read_text(encoding="utf-8")))
