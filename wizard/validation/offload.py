"""The offload round trip: parameters and optimizer state to the host and back, as verl does between phases.

Target interpreter. Source: verl 0.9.1 `utils/fsdp_utils.py` (`offload_fsdp_model_to_cpu`, `load_fsdp_model_to_gpu`,
`offload_fsdp_optimizer`, `load_fsdp_optimizer`).
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from wizard.validation.setup import Context


def round_trip(model: nn.Module, optimizer: torch.optim.Optimizer, context: Context) -> None:
    """Move what the spec offloads to the host and back, telling bytes freed and seconds each way."""
    before = _allocated(context)
    started = time.perf_counter()
    _move(model, optimizer, context, torch.device("cpu"))
    _wait(context)
    out_seconds, freed = time.perf_counter() - started, before - _allocated(context)
    started = time.perf_counter()
    _move(model, optimizer, context, context.device)
    _wait(context)
    context.reporter.metric(
        offload_seconds=out_seconds, reload_seconds=time.perf_counter() - started, offload_freed_bytes=freed
    )


def _wait(context: Context) -> None:
    if context.device.type == "cuda":
        torch.cuda.synchronize()


def _allocated(context: Context) -> int:
    return torch.cuda.memory_allocated() if context.device.type == "cuda" else 0


def _move(model: nn.Module, optimizer: torch.optim.Optimizer, context: Context, device: torch.device) -> None:
    spec = context.spec
    if spec.param_offload and not spec.offload_policy:
        _move_fsdp1(model, device) if spec.strategy == "fsdp" else model.to(device)
        if device.type == "cpu":
            # Rotary tables are small, and kernels expect them where they compute.
            for buffer in model.buffers():
                buffer.data = buffer.data.to(context.device)
    if spec.optimizer_offload and not spec.offload_policy:
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[name] = value.to(device)


def _move_fsdp1(model: Any, device: torch.device) -> None:
    from torch.distributed.fsdp._runtime_utils import _lazy_init

    _lazy_init(model, model)
    for handle in model._all_handles:
        handle.flat_param_to(device, non_blocking=True)
        handle.flat_param._local_shard = handle.flat_param.data
