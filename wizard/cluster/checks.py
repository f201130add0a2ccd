"""The findings a cluster check can have: id, severity, and what must hold. docs/cluster.md says more of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wizard.findings import Finding, Severity, Stage

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    severity: Severity
    title: str
    stage: Stage = Stage.ENVIRONMENT
    """When verl would show it."""


CHECKS: Mapping[str, Check] = {
    "cluster-run": Check(ERROR, "all ranks start, meet and measure"),
    "versions-differ": Check(ERROR, "all nodes have the same releases"),
    "driver-differs": Check(WARNING, "all nodes have the same driver"),
    "gpus-differ": Check(ERROR, "all nodes have as many GPUs, of the same kind"),
    "gpu-taken": Check(WARNING, "GPUs are free"),
    "facts-unread": Check(NOTE, "everything could be read"),
    "model-missing": Check(ERROR, "every node sees the model's folder", Stage.WORKERS),
    "model-differs": Check(ERROR, "every node sees the same model", Stage.SILENT),
    "interface-unknown": Check(ERROR, "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name interfaces that are up"),
    "interface-choice": Check(NOTE, "it is clear which of several networks is used"),
    "loopback-only": Check(WARNING, "a node of several has an address for the others"),
    "rendezvous-bridge": Check(WARNING, "the rendezvous is not on a container's bridge"),
    "infiniband-down": Check(WARNING, "InfiniBand and RoCE ports are active"),
    "infiniband-off": Check(WARNING, "InfiniBand that is there is used"),
    "infiniband-differs": Check(WARNING, "all nodes have the same active ports"),
    "network-variables-differ": Check(WARNING, "network variables are the same on all nodes"),
    "bandwidth-low": Check(WARNING, "collectives reach half of the link's rate"),
    "bandwidth-uneven": Check(WARNING, "no pair of nodes is much slower than the others"),
    "straggler": Check(WARNING, "no rank computes much slower than the others"),
    "clock-skew": Check(WARNING, "the nodes' clocks agree", Stage.SILENT),
    "ray-bundle": Check(ERROR, "Ray's nodes hold what verl asks for", Stage.TRAINER),
}


def found(id: str, field: str, value: Any, message: str, severity: Severity | None = None) -> Finding:
    """Return a finding; `field` is what is not as it should be, on which node."""
    check = CHECKS[id]
    return Finding(id, severity or check.severity, field, value, message, check.stage)


def differing(values: Mapping[str, str]) -> str:
    """Return values by node in words, equal ones together: `2.8.0 on a and b, 2.7.1 on c`."""
    nodes: dict[str, list[str]] = {}
    for node, value in values.items():
        nodes.setdefault(value or "none", []).append(node)
    return ", ".join(f"{value} on {' and '.join(of)}" for value, of in nodes.items())
