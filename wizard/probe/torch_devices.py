"""Runs in the target interpreter: what torch says about the GPUs, for fields that NVML does not give."""

from __future__ import annotations

from collections.abc import Sequence

from wizard.probe.answer import answer, end_with_asker


def main(arguments: Sequence[str]) -> int:
    """Answer with one record a visible device; memory in bytes as `torch.cuda.mem_get_info` tells it."""
    end_with_asker()
    import torch

    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        devices.append(
            {
                "index": index,
                "uuid": f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else "",
                "name": properties.name,
                "compute_capability": f"{properties.major}.{properties.minor}",
                "total_bytes": total,
                "free_bytes": free,
                "shared_with_host": bool(getattr(properties, "is_integrated", False)),
            }
        )
    answer(devices)
    return 0
