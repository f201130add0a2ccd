"""Lets verl's FSDP engine run on the CPU with gloo. Target interpreter.

verl 0.9.1 knows accelerators only: `plugin/platform/` has no CPU, and engines are registered for cuda and npu
(`workers/engine/base.py`, `EngineRegistry`). What is changed here is where tensors live, never what is computed.
"""

from __future__ import annotations

import os
from typing import Any

import torch


def use_cpu() -> None:
    """Make the CPU verl's platform; call it before anything of `verl.workers` is imported."""
    os.environ["VERL_ENGINE_DEVICE"] = "cuda"
    from verl.plugin.platform.platform_cuda import PlatformCUDA
    from verl.plugin.platform.platform_manager import set_platform

    class PlatformCPU(PlatformCUDA):  # type: ignore[misc]
        device_name = "cpu"

        def is_available(self) -> bool:
            return True

        def current_device(self) -> torch.device:
            return torch.device("cpu")

        def communication_backend_name(self) -> str:
            return "gloo"

        def synchronize(self, device_index: int | None = None) -> None:
            """Nothing runs aside on a CPU."""

    set_platform(PlatformCPU())
    _let_torch_shard_on_cpu()


def _let_torch_shard_on_cpu() -> None:
    import torch.distributed.fsdp._init_utils as fsdp1
    from verl.workers.engine.fsdp import transformer_impl

    # torch's fsdp refuses to broadcast weights that lie on a CPU, although gloo can.
    fsdp1._check_module_states_for_sync_module_states = lambda *_: None
    policy = transformer_impl.CPUOffloadPolicy

    def unpinned(**_: Any) -> Any:
        # Pinned memory needs an accelerator.
        return policy(pin_memory=False)

    transformer_impl.CPUOffloadPolicy = unpinned
    # It asks a CUDA device for its memory on the way to the log.
    transformer_impl.log_gpu_memory_usage = lambda *_, **__: None
