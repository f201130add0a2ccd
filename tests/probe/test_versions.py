"""Judgement of versions; verl's demands are the released wheel's own metadata."""

from __future__ import annotations

import importlib.metadata

import pytest

from wizard.probe.cuda import TorchBuild, covers, cuda_row
from wizard.probe.gpu_report import Gpu, GpuReport, Visible, VisibleDevice
from wizard.probe.versions import Installed, State, package_row

PYTHON = "/opt/my env/bin/python"


@pytest.fixture(scope="module")
def verl_requires() -> list[str]:
    try:
        return importlib.metadata.requires("verl") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("verl's metadata is the reference and verl is not installed")


def installed(requires: list[str], **versions: str) -> Installed:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return Installed("3.11.2", PYTHON, True, {"verl": "0.9.1", **named} if requires else named, requires)


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [
        ("transformers", "5.5.2", State.FAIL),
        ("transformers", "5.5.3", State.OK),
        ("transformers", "5.6.0", State.FAIL),
        ("transformers", "5.10.4", State.OK),
        ("transformers", "5.11.0", State.FAIL),
        ("tensordict", "0.9.0", State.FAIL),
        ("tensordict", "0.10.0", State.OK),
        ("numpy", "1.26.4", State.FAIL),
        ("ray", "2.40.0", State.FAIL),
        ("torch", "2.11.0+cu130", State.OK),
        ("torch", "2.13.0", State.WARN),
        ("vllm", "0.24.0", State.OK),
        ("vllm", "0.8.2", State.WARN),
        ("flash_attn", "2.8.3", State.OK),
    ],
)
def test_verls_metadata_decides(verl_requires: list[str], name: str, version: str, state: State) -> None:
    row = package_row(name.replace("_", "-"), installed(verl_requires, **{name: version}))
    assert row.state is state, row.reason
    assert bool(row.install) == (state is not State.OK)


def test_the_command_is_quoted_and_carries_verls_bounds(verl_requires: list[str]) -> None:
    row = package_row("transformers", installed(verl_requires, transformers="4.57.0"))
    assert row.install.startswith("'/opt/my env/bin/python' -m pip install 'transformers")
    assert all(bound in row.install for bound in (">=5.5.3", "<5.11", "!=5.6.0"))


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [
        ("torch", "2.3.1", State.FAIL),
        ("torch", "2.4.0", State.OK),
        ("torch", "2.4.0a0+gitabc", State.OK),
        ("torch", "2.6.0a0+ecf3bae40a.nv25.01", State.OK),
        ("torch", "2.3.0a0+ebedce2", State.FAIL),
        ("torch", "main", State.WARN),
        ("transformers", "4.39.3", State.FAIL),
        ("transformers", "4.40.0", State.OK),
        ("verl", "0.8.0", State.OK),
        ("verl", "0.3.0", State.WARN),
        ("verl", "0.9.1.dev3", State.OK),
        ("verl", "1", State.WARN),
        ("verl", "", State.WARN),
    ],
)
def test_own_minimum_without_verls_metadata(name: str, version: str, state: State) -> None:
    row = package_row(name, installed([], **{name: version}))
    assert row.state is state, row.reason


def test_one_rollout_engine_is_enough(verl_requires: list[str]) -> None:
    with_sglang = installed(verl_requires, sglang="0.5.12")
    assert package_row("vllm", with_sglang).state is State.OK
    assert package_row("vllm", with_sglang).install == ""
    assert package_row("vllm", installed(verl_requires)).install.endswith("vllm==0.24.0")


def node(driver_cuda: str, capability: str = "9.0", problem: str = "") -> GpuReport:
    devices = () if problem else (VisibleDevice(0),)
    gpus = (Gpu(0, name="NVIDIA H200", compute_capability=capability),)
    return GpuReport("ok", "", "570.1", driver_cuda, gpus, visible=Visible(None, devices, problem))


CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
BARE = installed([])


@pytest.mark.parametrize(
    ("build", "gpus", "state", "word"),
    [
        (TorchBuild("", "2.11.0+cu130", "13.0", "", True, CU130), node("13.0"), State.OK, "570.1"),
        (TorchBuild("", "2.11.0+cu130", "13.0", "", False, CU130), node("12.8"), State.FAIL, "up to 12.8"),
        (TorchBuild("", "2.8.0+cu128", "12.8", "", True, CU130), node("12.4"), State.WARN, "minor-version"),
        (TorchBuild("", "2.11.0+cpu"), node("12.8"), State.FAIL, "CPU build"),
        (TorchBuild("", "2.11.0+cpu"), GpuReport("absent"), State.OK, "no GPU"),
        (TorchBuild("", "2.11.0+cu130", "13.0"), GpuReport("absent"), State.OK, "no GPU"),
        (TorchBuild("", "2.11.0+cu130", "13.0", "", False, CU130), node("13.0"), State.FAIL, "no usable GPU"),
        (TorchBuild("", "2.11.0+cu130", "13.0", "", True, CU130), node("13.0", "7.0"), State.FAIL, "no code for"),
        (TorchBuild("", "2.11.0+cu130", "13.0", "", False, CU130), node("13.0", problem="hid"), State.WARN, "hid"),
        (TorchBuild("ImportError: libcudnn"), node("13.0"), State.WARN, "does not import"),
    ],
)
def test_torchs_cuda_against_driver_and_gpus(build: TorchBuild, gpus: GpuReport, state: State, word: str) -> None:
    row = cuda_row(build, gpus, BARE)
    assert (row.state, row.name) == (state, "cuda")
    assert word in row.reason


def test_the_install_command_takes_the_newest_build_the_driver_runs() -> None:
    row = cuda_row(TorchBuild("", "2.11.0+cu130", "13.0"), node("12.7"), BARE)
    assert row.install.endswith("--index-url https://download.pytorch.org/whl/cu126")


@pytest.mark.parametrize(
    ("architectures", "capability", "expected"),
    [
        (("sm_80",), "8.6", True),
        (("sm_86",), "8.0", False),
        (("sm_80",), "9.0", False),
        (("sm_80", "compute_80"), "9.0", True),
        (("sm_90a",), "9.0", True),
        (("sm_100a",), "10.3", False),
        (("sm_100",), "10.3", True),
        (("compute_120",), "9.0", False),
        ((), "9.0", True),
        (("sm_90",), "", True),
        (("gfx942",), "9.4", False),
    ],
)
def test_binary_and_ptx_compatibility(architectures: tuple[str, ...], capability: str, expected: bool) -> None:
    """NVIDIA's rule: machine code runs on the same major and no earlier minor, PTX on anything newer."""
    assert covers(architectures, capability) is expected
