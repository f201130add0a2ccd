"""What differs between nodes: releases, GPUs, the model. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wizard.cluster.checks import ERROR, WARNING, differing, found
from wizard.cluster.report import NodeFacts
from wizard.findings import Finding
from wizard.text import gib

MUST_BE_EQUAL = ("torch", "NCCL", "verl", "ray")
"""Ranks of other releases of these do not talk to each other, or compute something else; Ray refuses to join them."""
TAKEN_SHARE = 0.1
"""Share of a GPU's memory in use from which it counts as taken; driver and display hold less."""


def judge_nodes(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Yield what differs; `nodes` has one entry a node."""
    yield from _versions(nodes)
    yield from _gpus(nodes)
    yield from _model(nodes)
    for node in nodes:
        if node.unread:
            yield found("facts-unread", f"node {node.node}", None, f"not read: {'; '.join(node.unread)}.")


def _versions(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    for name in dict.fromkeys(name for node in nodes for name in node.versions):
        versions = {node.node: node.versions.get(name, "") for node in nodes}
        # A patch of Python is no other Python.
        compared = {v.rpartition(".")[0] if name == "python" else v for v in versions.values()}
        if len(compared) > 1:
            text = "Nodes must run the same: install one release on all."
            severity = ERROR if name in MUST_BE_EQUAL else WARNING
            yield found("versions-differ", name, differing(versions), text, severity)
    drivers = {node.node: node.driver for node in nodes}
    if len(set(drivers.values())) > 1:
        yield found("driver-differs", "driver", differing(drivers), "The oldest decides which CUDA runs: update it.")


def _gpus(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    counts = {node.node: str(len(node.gpus)) for node in nodes}
    if len(set(counts.values())) > 1:
        text = "verl gives every node the same number of ranks: take the smallest, or look why a GPU is missing."
        yield found("gpus-differ", "GPUs of a node", differing(counts), text)
    kinds = {node.node: ", ".join(sorted({_kind(node, at) for at in range(len(node.gpus))})) for node in nodes}
    if len(set(kinds.values())) > 1 or any(", " in kind for kind in kinds.values()):
        text = "Sharding gives every GPU the same work: the slowest and smallest one decides for all."
        yield found("gpus-differ", "kind of GPU", differing(kinds), text, WARNING)
    for node in nodes:
        for gpu in node.gpus:
            used = gpu.total_bytes - gpu.free_bytes
            if used > TAKEN_SHARE * gpu.total_bytes:
                text = "Another process holds it (nvidia-smi there tells which): training would miss it."
                yield found("gpu-taken", f"GPU {gpu.index} of node {node.node}", f"{gib(used)} in use", text)


def _kind(node: NodeFacts, at: int) -> str:
    gpu = node.gpus[at]
    return f"{gpu.name or 'unknown'} {gib(gpu.total_bytes)}"


def _model(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    seen = [(node.node, node.model) for node in nodes if node.model is not None]
    for node, model in seen:
        if not model.found:
            where = "" if model.resolved == model.path else f" ({model.resolved} there)"
            text = f"node {node} does not see it{where}: verl's workers there stop when they load. Put it on a file "
            yield found("model-missing", f"model on node {node}", model.path, text + "system that all nodes share.")
    present = [(node, model) for node, model in seen if model.found]
    for node, model in present[1:]:
        first, reference = present[0]
        names = sorted(
            name
            for name in reference.sizes.keys() | model.sizes.keys()
            if reference.sizes.get(name) != model.sizes.get(name)
            or reference.digests.get(name) != model.digests.get(name)
        )
        if names:
            listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            text = f"node {node} sees other files than node {first}: ranks would train different models. Copy it anew."
            yield found("model-differs", f"model on node {node}", f"{model.resolved}: {listed}", text)
