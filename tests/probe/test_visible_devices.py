"""CUDA_VISIBLE_DEVICES against torch's own reading of it, and MIG against NVIDIA's rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wizard.probe.gpu_report import Gpu, MigInstance, VisibleDevice
from wizard.probe.visible_devices import visible_devices

UUIDS = (
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "GPU-8932f9aa-0001-4106-c12f-20bd9faed9f6",
    "GPU-12345678-d72c-4106-c12f-20bd9faed9f6",
    "GPU-00000000-aaaa-4106-c12f-20bd9faed9f6",
)
GPUS = tuple(Gpu(index, uuid=uuid, name="NVIDIA H200", mig_enabled=False) for index, uuid in enumerate(UUIDS))


@pytest.fixture(scope="module")
def as_torch_reads() -> Callable[[str], list[int]]:
    """Return torch's reading of a setting as NVML ordinals, on a node with the GPUs above."""
    cuda = pytest.importorskip("torch.cuda")
    for name in ("_parse_visible_devices", "_transform_uuid_to_ordinals"):
        if not hasattr(cuda, name):
            pytest.skip(f"this torch has no torch.cuda.{name}")

    def read(setting: str) -> list[int]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", setting)
            parsed = cuda._parse_visible_devices()
        if parsed and isinstance(parsed[0], str):
            return cuda._transform_uuid_to_ordinals(parsed, list(UUIDS))
        # torch.cuda._device_count_nvml cuts the list at the first ordinal that does not exist.
        end = next((at for at, ordinal in enumerate(parsed) if ordinal >= len(UUIDS)), len(parsed))
        return parsed[:end]

    return read


def indices(setting: str) -> list[int]:
    return [device.gpu_index for device in visible_devices({"CUDA_VISIBLE_DEVICES": setting}, GPUS).devices]


@pytest.mark.parametrize(
    "setting",
    [
        "0", "2,1", "0,2,-1,1", "-1", "", " ", "0,0", "0,1,0", "9", "0,9,1", "0,9,9", "0,9,0", "1gpu2,2ampere",
        "NoDevFiles", "0, 1", "0,,1", "+1", "0,GPU-8932f937", "GPU-8932f937", "GPU-8932f9", "GPU-12345678,GPU-8932f937",
        "GPU-1,GPU-12345678", "GPU-1,GPU-1", "GPU-1,0", "GPU-1, GPU-0", "GPU-zzz", "GPU-1,GPU-zzz,GPU-0",
        f"{UUIDS[3]},{UUIDS[0]}",
    ],
)  # fmt: skip
def test_reads_as_torch_does(setting: str, as_torch_reads: Callable[[str], list[int]]) -> None:
    assert indices(setting) == as_torch_reads(setting)


entries = st.one_of(
    st.integers(-2, 6).map(str),
    st.sampled_from(UUIDS).flatmap(lambda uuid: st.integers(3, len(uuid)).map(lambda end: uuid[:end])),
    st.text(alphabet="0123GPUMx ", max_size=5),  # a sign without digits ends torch's own reading with ValueError
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(entries, max_size=5).map(",".join))
def test_any_setting_reads_as_torch_does(as_torch_reads: Callable[[str], list[int]], setting: str) -> None:
    assert indices(setting) == as_torch_reads(setting)


def test_unset_leaves_all() -> None:
    visible = visible_devices({}, GPUS)
    assert [device.gpu_index for device in visible.devices] == [0, 1, 2, 3]
    assert (visible.setting, visible.problem) == (None, "")


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("0,0", "twice"),
        ("0,9", "'9'"),
        ("", "no GPU"),
        ("-1", "no GPU"),
        ("0,-1,1", "'-1'"),
        ("GPU-8932f9", "more than one"),
    ],
)
def test_says_what_is_wrong(setting: str, word: str) -> None:
    assert word in visible_devices({"CUDA_VISIBLE_DEVICES": setting}, GPUS).problem


def test_a_correct_setting_has_no_problem() -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "3,1"}, GPUS).problem == ""


def test_mixed_boards_by_index_need_the_bus_order() -> None:
    mixed = (Gpu(0, uuid=UUIDS[0], name="NVIDIA T4"), Gpu(1, uuid=UUIDS[1], name="NVIDIA H100"))
    assert "CUDA_DEVICE_ORDER" in visible_devices({"CUDA_VISIBLE_DEVICES": "0"}, mixed).problem
    ordered = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_devices(ordered, mixed).problem == ""
    assert visible_devices({"CUDA_VISIBLE_DEVICES": UUIDS[0]}, mixed).problem == ""


FIRST = MigInstance("MIG-aaaa1111-0000-5000-8000-000000000001", "3g.71gb", 1, 0, None)
SECOND = MigInstance("MIG-aaaa2222-0000-5000-8000-000000000002", "3g.71gb", 2, 0, None)
PARTITIONED = (
    Gpu(0, uuid=UUIDS[0], mig_enabled=True, instances=(FIRST, SECOND)),
    Gpu(1, uuid=UUIDS[1], mig_enabled=False),
)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (SECOND.uuid, [VisibleDevice(0, SECOND.uuid)]),
        ("MIG-aaaa2", [VisibleDevice(0, SECOND.uuid)]),
        ("MIG-aaaa", []),
        (f"MIG-{UUIDS[0]}/2/0", [VisibleDevice(0, SECOND.uuid)]),
        (f"MIG-{UUIDS[0]}/7/0", []),
        (f"{FIRST.uuid},{SECOND.uuid}", [VisibleDevice(0, FIRST.uuid)]),
        (f"{FIRST.uuid},{FIRST.uuid}", []),
        ("0", [VisibleDevice(0, FIRST.uuid)]),
        ("1,0", [VisibleDevice(0, FIRST.uuid)]),
        ("1", [VisibleDevice(1)]),
    ],
)
def test_mig(setting: str, expected: list[VisibleDevice]) -> None:
    """One compute instance a process, and no whole GPU beside it (MIG User Guide, CUDA device enumeration)."""
    assert list(visible_devices({"CUDA_VISIBLE_DEVICES": setting}, PARTITIONED).devices) == expected


def test_mig_mode_without_instances_hides_the_gpu() -> None:
    visible = visible_devices({}, (Gpu(0, uuid=UUIDS[0], mig_enabled=True), Gpu(1, uuid=UUIDS[1], mig_enabled=False)))
    assert visible.devices == (VisibleDevice(1),)
    assert "GPU 0 is in MIG mode" in visible.problem
