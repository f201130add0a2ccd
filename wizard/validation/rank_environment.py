"""Environment variables of a rank's process. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

from wizard.validation.spec import Device
from wizard.validation.stacks import COLLECTIVES

NODE_VARIABLE = "VERL_WIZARD_NODE"
"""The node's name as the launcher knows it; without it a rank tells its host's name."""


def rank_variables(device: Device, world_size: int, folder: Path) -> dict[str, str]:
    """Return what a rank's process needs, beyond what it inherits; `folder` is the run's on the rank's machine."""
    variables = {
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    if device == "cpu":
        # torch sees no GPU: a laptop's small one must not be initialised by accident.
        variables["CUDA_VISIBLE_DEVICES"] = ""
        threads = max(1, (os.cpu_count() or 1) // world_size)
        return variables | _unless_set({"OMP_NUM_THREADS": str(threads)})
    # NCCL's flight recorder keeps every rank's last collectives and writes them to the run folder when a byte
    # comes through the pipe; newer releases of torch dropped NCCL from two of the names.
    return variables | _unless_set(
        {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(folder / COLLECTIVES),
            "TORCH_FR_DUMP_TEMP_FILE": str(folder / COLLECTIVES),
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / COLLECTIVES),
        }
    )


def _unless_set(variables: dict[str, str]) -> dict[str, str]:
    return {name: os.environ.get(name, value) for name, value in variables.items()}
