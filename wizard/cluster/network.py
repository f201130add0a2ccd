"""Network interfaces and InfiniBand devices of this node, and the choice that NCCL and gloo make. Target interpreter.

psutil comes with Ray; an interpreter without both tells so, and the rest of the check goes on.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from wizard.cluster.report import InfinibandPort, Interface


def read_interfaces() -> tuple[Interface, ...]:
    """Return all interfaces in the order of the system.

    Raises:
        ImportError: psutil is not installed.
    """
    if importlib.util.find_spec("psutil") is None:
        # Ray puts a copy of its own on the path.
        importlib.import_module("ray")
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    states = psutil.net_if_stats()
    found = []
    for name, entries in psutil.net_if_addrs().items():
        addresses = tuple(entry.address.partition("%")[0] for entry in entries if entry.family in families)
        state = states.get(name)
        found.append(Interface(name, addresses, bool(state and state.isup), state.speed if state else 0))
    return tuple(found)


def read_infiniband(root: Path = Path("/")) -> tuple[InfinibandPort, ...]:
    """Return all ports of InfiniBand and RoCE devices; `root` is where `sys` is mounted."""
    found = []
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        rate = re.match(r"[\d.]+", _text(folder / "rate"))
        found.append(
            InfinibandPort(
                device=folder.parents[1].name,
                port=int(folder.name),
                state=_text(folder / "state").rpartition(": ")[2],
                rate_gbit=float(rate.group()) if rate else 0.0,
                link_layer=_text(folder / "link_layer"),
            )
        )
    return tuple(found)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def interface_towards(address: str, interfaces: Sequence[Interface]) -> str:
    """Return the interface that packets to `address` leave by; empty when it cannot be told. Sends none."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            own = str(probe.getsockname()[0])
    except OSError:
        return ""
    return next((interface.name for interface in interfaces if own in interface.addresses), "")


def network_variables() -> dict[str, str]:
    """Return the variables that choose networks for NCCL and gloo."""
    return {name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "GLOO_"))}
