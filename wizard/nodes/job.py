"""A run as a driver hands it on to nodes: of its spec it reads no more than this. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from wizard.nodes.requirements import COLOCATED_CPUS
from wizard.validation.spec import Device


@dataclass(frozen=True)
class Job:
    """One run."""

    worker: str
    """Module whose `main` is a rank."""
    spec: str
    """Text of the spec file, for the worker."""
    world_size: int
    device: Device
    model: str = ""
    """Folder that every node must see; empty where there is none."""
    tolerant: bool = False
    """Whether nodes that differ are what the run is about, rather than a reason to refuse it."""

    @property
    def cpus_per_gpu(self) -> int:
        """CPUs that a GPU's bundle asks for: as verl does, so that a node too small is found before."""
        return 1 if self.tolerant else COLOCATED_CPUS


def read_job(worker: str, spec_file: Path) -> Job:
    """Read what a launcher needs of a spec file."""
    text = spec_file.read_text(encoding="utf-8")
    data = json.loads(text)
    return Job(
        worker, text, data["world_size"], data["device"], data.get("model", ""), tolerant=data.get("tolerant", False)
    )
