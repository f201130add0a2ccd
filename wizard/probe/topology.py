"""How pairs of GPUs are connected, in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pynvml  # type: ignore[import-untyped]

from wizard.facts import Interconnect
from wizard.probe.gpu_report import Link
from wizard.probe.nvml import FieldReader

_PATHS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}


def read_links(reader: FieldReader, handles: Mapping[int, Any]) -> tuple[Link, ...]:
    """Return one link a pair of GPUs; `handles` maps NVML index to device handle."""
    return tuple(
        _link(reader, first, second, handles) for first, second in itertools.combinations(sorted(handles), 2)
    )


def _link(reader: FieldReader, first: int, second: int, handles: Mapping[int, Any]) -> Link:
    field = f"link {first}-{second}"
    pair = handles[first], handles[second]
    status = reader.read(field, "nvmlDeviceGetP2PStatus", *pair, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    if status == pynvml.NVML_P2P_STATUS_OK:
        links = _nvlinks(reader, *pair)
        return Link(first, second, "nvlink", f"NV{links}" if links else "NV")
    level = reader.read(field, "nvmlDeviceGetTopologyCommonAncestor", *pair)
    # A failed NVLink question must not turn an NVLink machine into a PCIe one.
    kind: Interconnect = "pcie" if status is not None and level is not None else "unknown"
    return Link(first, second, kind, _PATHS.get(level, ""))


def _nvlinks(reader: FieldReader, first: Any, second: Any) -> int:
    """Count active NVLinks of `first` that lead to `second`, directly or through an NVSwitch."""
    peer = reader.quiet("nvmlDeviceGetPciInfo", second)
    count = 0
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = reader.quiet("nvmlDeviceGetNvLinkState", first, number)
        if state is None:
            break
        if not state:
            continue
        remote = reader.quiet("nvmlDeviceGetNvLinkRemoteDeviceType", first, number)
        if remote == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            count += 1
        elif peer is not None:
            info = reader.quiet("nvmlDeviceGetNvLinkRemotePciInfo", first, number)
            count += info is not None and (info.domain, info.bus, info.device) == (peer.domain, peer.bus, peer.device)
    return count
