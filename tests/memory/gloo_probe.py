"""Run under torchrun by test_memory_gloo.py: one update on real gloo ranks; each rank writes what it then holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from measure_cases import from_dict
from measure_engine import Measurement


def local_bytes(tensor: torch.Tensor) -> int:
    """Bytes of this rank's part."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


def main() -> None:
    """Read the case from the first argument; write `RANK.json` into the folder of the second."""
    dist.init_process_group("gloo")
    measurement = Measurement(from_dict(json.loads(sys.argv[1])), on_cpu=True)
    model, optimizer = measurement._build()
    measurement._step(model, optimizer)
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    held = {
        "parameters": sum(local_bytes(parameter) for parameter in model.parameters()),
        "optimizer": sum(local_bytes(moment) for moment in moments),
    }
    Path(sys.argv[2], f"{dist.get_rank()}.json").write_text(json.dumps(held))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
