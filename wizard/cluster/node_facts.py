"""Reads what a rank's node has: versions, GPUs, networks, the model's folder. Target interpreter, no CUDA context."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from pathlib import Path

from wizard.cluster.network import interface_towards, network_variables, read_infiniband, read_interfaces
from wizard.cluster.report import GpuFacts, Interface, ModelFolder, NodeFacts
from wizard.probe.installed import version_of

PACKAGES = {"torch": "torch", "transformers": "transformers", "verl": "verl", "ray": "ray"}
NVLINK_BYTES_PER_SECOND = {True: 50e9, False: 25e9}
"""One NVLink in one direction, by whether the GPU is of compute capability 10 or later (NVIDIA's data sheets: 18 links
of a B200 make 1.8 TB/s, of an H100 900 GB/s, 12 of an A100 600 GB/s, both directions together)."""
_MODEL_FILES = 2000
_HASHED = re.compile(r"config\.json|.*\.index\.json|tokenizer.*\.json")


def read_node_facts(rank: int, node: str, rendezvous: str, model_path: str) -> NodeFacts:
    """Return the facts of this rank's node."""
    unread: list[str] = []
    interfaces: tuple[Interface, ...] = ()
    try:
        interfaces = read_interfaces()
    except ImportError as error:
        unread.append(f"network interfaces ({error}; pip install psutil there)")
    gpus, driver, link, link_rate = _gpus(unread)
    return NodeFacts(
        rank=rank,
        node=node,
        versions=_versions(),
        driver=driver,
        gpus=gpus,
        link=link,
        link_bytes_per_second=link_rate,
        interfaces=interfaces,
        infiniband=read_infiniband(),
        rendezvous=rendezvous,
        rendezvous_interface=interface_towards(rendezvous, interfaces),
        environment=network_variables(),
        model=read_model(model_path) if model_path else None,
        unread=tuple(unread),
    )


def _versions() -> dict[str, str]:
    import torch

    found = {"python": platform.python_version()}
    found |= {name: version for name, module in PACKAGES.items() if (version := version_of(name, module)) is not None}
    if torch.version.cuda:
        found["CUDA"] = torch.version.cuda
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def _gpus(unread: list[str]) -> tuple[tuple[GpuFacts, ...], str, str, float]:
    """Return GPUs, driver, and how they are linked: as the probe does, through NVML."""
    try:
        from wizard.probe.gpu_text import link_lines
        from wizard.probe.gpus import read_gpus
    except ImportError as error:
        driver = _driver()
        if driver:
            unread.append(f"GPUs ({error}; pip install nvidia-ml-py psutil there)")
        return (), driver, "", 0.0
    report = read_gpus()
    gpus = tuple(
        GpuFacts(gpu.index, gpu.name, gpu.memory.total_bytes, gpu.memory.free_bytes, gpu.compute_capability)
        for gpu in report.gpus
        if gpu.memory is not None
    )
    paths = {link.path for link in report.links}
    widths = [int(path[2:]) for path in paths if re.fullmatch(r"NV\d+", path)]
    rate = 0.0
    if gpus and len(widths) == len(paths) == 1:
        major = int(gpus[0].compute_capability.partition(".")[0] or 0)
        rate = widths[0] * NVLINK_BYTES_PER_SECOND[major >= 10]
    return gpus, report.driver_version or _driver(), "; ".join(link_lines(report)), rate


def _driver() -> str:
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return found.group() if found else ""


def read_model(path: str) -> ModelFolder:
    """Return the files of a model's folder; large ones by size, those that describe it by content too."""
    folder = Path(os.path.expanduser(path))
    sizes: dict[str, int] = {}
    digests: dict[str, str] = {}
    try:
        for file in sorted(folder.iterdir())[:_MODEL_FILES]:
            if file.is_file():
                sizes[file.name] = file.stat().st_size
                if _HASHED.fullmatch(file.name):
                    digests[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ModelFolder(path, str(folder), False, {}, {})
    return ModelFolder(path, str(folder), True, sizes, digests)
