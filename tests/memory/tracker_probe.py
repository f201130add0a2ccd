"""Run by test_memory_tracker.py in a process of its own: torch's FSDPMemTracker over pretended worlds, on the CPU.

Prints one JSON object a configuration: bytes by the tracker's categories, at its peak and after backward.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from measure_cases import from_dict
from measure_engine import FakeStore, Measurement


def main() -> None:
    """Read cases as JSON from stdin."""
    for values in json.load(sys.stdin):
        case = from_dict(values)
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=0, world_size=case.world_size, store=FakeStore())
        measurement = Measurement(case, on_cpu=True)
        # A mesh reads its ranks, which fake tensors do not have.
        mesh = measurement._mesh()
        measurement._mesh = lambda mesh=mesh: mesh  # type: ignore[method-assign]
        with FakeTensorMode():
            print(json.dumps(track(measurement)), flush=True)


def track(measurement: Measurement) -> dict[str, Any]:
    """Return the tracker's snapshots of one forward and backward."""
    case = measurement.case
    model, _ = measurement._build()
    tracker = FSDPMemTracker(model)
    ids = torch.randint(0, case.vocab, (1, case.tokens))
    positions = torch.arange(case.tokens)[None]
    tracker.track_inputs((ids, positions))
    with tracker:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        logits.sum().backward()
        del logits
        snapshots = {name: tracker.get_tracker_snapshot(name) for name in ("peak", "current")}
    return {
        name: {str(kind).rpartition(".")[2]: size for kind, size in found[torch.device("cpu")].items()}
        for name, found in snapshots.items()
    }


if __name__ == "__main__":
    main()
