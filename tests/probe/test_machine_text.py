"""Descriptions of a machine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wizard.facts import Machine
from wizard.probe.machine import MachineError, machine_text, parse_machine, parse_nodes, probe_machine

MIB = 1 << 20
H100 = 81559 * MIB
"""Total of an H100 80GB HBM3 as nvidia-smi prints it."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8x80GB", Machine(gpus_per_node=8, gpu_memory_bytes=H100, gpu_free_bytes=H100)),
        ("8× 80 GB", Machine(gpus_per_node=8, gpu_memory_bytes=H100, gpu_free_bytes=H100)),
        (
            "8x80GB,cc9.0,nvlink",
            Machine(1, 8, "", H100, H100, compute_capability="9.0", interconnect="nvlink"),
        ),
        (
            "8 × 80 GB, cc 9.0, NVLink, ram=512GB, cpus=96",
            Machine(1, 8, "", H100, H100, "9.0", "nvlink", host_memory_bytes=512 * 10**9, host_cpus=96),
        ),
        ("8xh100", Machine(1, 8, "H100", H100, H100, "9.0", "nvlink")),
        ("4xA100-40GB", Machine(1, 4, "A100-40GB", 40960 * MIB, 40960 * MIB, "8.0", "nvlink")),
        ("2x16GiB,sm_75,pcie", Machine(1, 2, "", 16384 * MIB, 16384 * MIB, "7.5", "pcie")),
        ("1x7.5GiB", Machine(1, 1, "", 7680 * MIB, 7680 * MIB)),
        ("8xB200,cc10.0", Machine(1, 8, "B200", 183359 * MIB, 183359 * MIB, "10.0", "nvlink")),
        ("cpu", Machine()),
        ("0", Machine()),
        ("CPU,ram=64GiB,cpus=8", Machine(host_memory_bytes=64 << 30, host_cpus=8)),
    ],
)
def test_reads(text: str, expected: Machine) -> None:
    assert parse_machine(text) == expected


def test_nodes() -> None:
    assert parse_machine("8xH100", nodes=4).world_size == 32


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("8", "'8'"),
        ("80GB", "'80GB'"),
        ("x80GB", "'x80GB'"),
        ("0x80GB", "0x80GB"),
        ("9999xH100", "9999xH100"),
        ("8xH1000", "H1000"),
        ("8x0GB", "8x0GB"),
        ("8x80GB,", "''"),
        ("8x80GB,fast", "fast"),
        ("8x80GB,cc9", "cc9"),
        ("8x80GB,ram=lots", "ram=lots"),
        ("8x80GB,cpus=0", "cpus=0"),
        ("-8x80GB", "-8x80GB"),
    ],
)
def test_refuses_and_names_the_part(text: str, named: str) -> None:
    with pytest.raises(MachineError) as caught:
        parse_machine(text)
    assert named in str(caught.value)


@pytest.mark.parametrize("nodes", [0, -1, 10**9])
def test_refuses_node_counts(nodes: int) -> None:
    with pytest.raises(MachineError, match="nodes"):
        parse_machine("8xH100", nodes=nodes)


@given(st.text(alphabet="0123456789x×*,. GBgibccramusp=[]", max_size=24))
def test_any_text_is_a_machine_or_a_message(text: str) -> None:
    try:
        machine = parse_machine(text)
    except MachineError:
        return
    assert machine.gpus_per_node == 0 or machine.gpu_memory_bytes > 0


@given(
    st.integers(1, 16),
    st.integers(1, 1 << 40),
    st.sampled_from(["", "7.5", "8.0", "9.0", "10.0", "12.1"]),
    st.sampled_from(["nvlink", "pcie", "unknown"]),
    st.integers(0, 1 << 44),
    st.integers(0, 512),
)
def test_a_machine_reads_back(count: int, memory: int, cc: str, interconnect: Any, ram: int, cpus: int) -> None:
    machine = Machine(1, count, "", memory, memory, cc, interconnect, ram, cpus)
    assert parse_machine(machine_text(machine)) == machine


@pytest.mark.parametrize("text", ["8xH100", "4xA100-40GB,pcie,ram=1TB", "2xT4,cpus=8", "cpu,cpus=4"])
def test_a_named_machine_reads_back(text: str) -> None:
    machine = parse_machine(text, nodes=3)
    assert parse_machine(machine_text(machine), nodes=3) == machine


@pytest.mark.parametrize("text", ["", "two", "-1", "1.5", "0", "²"])
def test_nodes_that_are_none(text: str) -> None:
    with pytest.raises(MachineError, match="nodes"):
        parse_nodes(text)


def test_this_machine() -> None:
    machine = probe_machine()
    assert machine.host_memory_bytes > 0
    assert machine.host_cpus > 0
