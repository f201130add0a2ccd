"""Whether torch's CUDA build, the driver and the GPUs fit together. Pure: facts in, a row out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wizard.probe.gpu_report import Gpu, GpuReport
from wizard.probe.versions import Installed, Row, State

_WHEEL_VERSIONS = ((11, 8), (12, 1), (12, 4), (12, 6), (12, 8), (12, 9), (13, 0))
"""CUDA builds of torch >= 2.4 on download.pytorch.org/whl."""


@dataclass(frozen=True)
class TorchBuild:
    """What `wizard.probe.installed torch` answers; `error` is why the import failed."""

    error: str
    version: str = ""
    cuda: str = ""
    """CUDA the build was compiled for, `major.minor`; empty for a CPU or ROCm build."""
    hip: str = ""
    cuda_available: bool = False
    architectures: tuple[str, ...] = ()
    """`torch.cuda.get_arch_list()`: `sm_90` for machine code, `compute_90` for PTX."""


def cuda_row(build: TorchBuild, gpus: GpuReport, installed: Installed) -> Row:
    """Judge the CUDA side of torch against the driver and each GPU's compute capability."""
    if build.error:
        return Row("cuda", "", State.WARN, "not known: torch does not import")
    install = _install(gpus, installed)
    version = build.cuda or build.hip
    if not build.cuda and gpus.gpus and not build.hip:
        return Row("cuda", "", State.FAIL, f"torch {build.version} is a CPU build, and this node has GPUs", install)
    if not version:
        return Row("cuda", "", State.OK, "CPU build; no GPU on this node")
    if not gpus.gpus and not build.cuda_available:
        return Row("cuda", version, State.OK, "no GPU on this node")
    if not gpus.visible.devices and not build.cuda_available:
        return Row("cuda", version, State.WARN, gpus.visible.problem or "no GPU is visible to CUDA")
    wanted, offered = _numbers(build.cuda), _numbers(gpus.cuda_version)
    if wanted and offered and wanted[0] > offered[0]:
        reason = f"{_driver(gpus)} runs CUDA up to {gpus.cuda_version}: update it, or take a torch built for it"
        return Row("cuda", version, State.FAIL, reason, install)
    if not build.cuda_available:
        return Row("cuda", version, State.FAIL, f"torch {build.version} finds no usable GPU ({_driver(gpus)})", install)
    uncovered = [gpu for gpu in gpus.gpus if not covers(build.architectures, gpu.compute_capability)]
    if uncovered:
        return Row("cuda", version, State.FAIL, _uncovered(build, uncovered[0]), install)
    if wanted and offered and wanted > offered:
        return Row(
            "cuda", version, State.WARN,
            f"{_driver(gpus)} is for CUDA {gpus.cuda_version}: compiled kernels run by minor-version compatibility, "
            "kernels compiled at run time may not. Update the driver.",
        )  # fmt: skip
    return Row("cuda", version, State.OK, _driver(gpus))


def covers(architectures: Sequence[str], capability: str) -> bool:
    """Return whether a build has code for a GPU: same major and no later minor in machine code, or older PTX.

    Unknown values count as covered. Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX
    Compatibility"; code for `sm_90a` runs on 9.0 alone.
    """
    gpu = _numbers(capability)
    if not gpu or not architectures:
        return True
    for architecture in architectures:
        kind, _, digits = architecture.partition("_")
        number = digits.rstrip("af")
        if not number.isdigit() or (digits != number and kind == "compute"):
            continue
        code = (int(number[:-1]), int(number[-1]))
        specific = digits.endswith("a")
        if code == gpu or (kind == "sm" and not specific and code[0] == gpu[0] and code[1] <= gpu[1]):
            return True
        if kind == "compute" and code <= gpu:
            return True
    return False


def _uncovered(build: TorchBuild, gpu: Gpu) -> str:
    return (
        f"torch {build.version} has no code for {gpu.name or f'GPU {gpu.index}'} (compute capability "
        f"{gpu.compute_capability}); it was built for {', '.join(build.architectures)}"
    )


def _install(gpus: GpuReport, installed: Installed) -> str:
    offered = _numbers(gpus.cuda_version)
    usable = [version for version in _WHEEL_VERSIONS if not offered or version <= offered]
    if not usable:
        return ""
    index = "".join(map(str, usable[-1]))
    return installed.command("--force-reinstall", "torch>=2.4", "--index-url", f"https://download.pytorch.org/whl/cu{index}")


def _driver(gpus: GpuReport) -> str:
    return f"driver {gpus.driver_version}" if gpus.driver_version else "the driver"


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
