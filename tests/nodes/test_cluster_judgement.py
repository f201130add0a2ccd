"""What a check makes of facts and measurements: each finding where it belongs, and none where nodes are alike."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from wizard.cluster.checks import CHECKS
from wizard.cluster.judge_network import chosen, judge_network
from wizard.cluster.judge_nodes import judge_nodes
from wizard.cluster.judge_pace import judge_pace, link_of
from wizard.cluster.network import read_infiniband
from wizard.cluster.report import (
    Bandwidth,
    Collective,
    GpuFacts,
    InfinibandPort,
    Interface,
    Measurements,
    ModelFolder,
    NodeFacts,
    StepClock,
    WallClock,
    bus_factor,
)
from wizard.findings import Finding

GIB = 1 << 30
HDR = InfinibandPort("mlx5_0", 1, "ACTIVE", 200.0, "InfiniBand")
MODEL = ModelFolder("/m", "/m", True, {"config.json": 600, "model.safetensors": 9000}, {"config.json": "aa"})
NODE = NodeFacts(
    rank=0,
    node="a",
    versions={"python": "3.11.7", "torch": "2.8.0", "NCCL": "2.27.3", "verl": "0.9.1"},
    driver="570.1",
    gpus=tuple(GpuFacts(index, "H100", 80 * GIB, 79 * GIB, "9.0") for index in range(8)),
    link="every pair: NVLink NV18",
    link_bytes_per_second=450e9,
    interfaces=(
        Interface("lo", ("127.0.0.1", "::1"), True, 0),
        Interface("eth0", ("10.0.0.1",), True, 25_000),
        Interface("docker0", ("172.17.0.1",), True, 0),
    ),
    infiniband=(HDR,) * 4,
    rendezvous="10.0.0.1",
    rendezvous_interface="eth0",
    environment={"NCCL_SOCKET_IFNAME": "eth", "GLOO_SOCKET_IFNAME": "eth0"},
    model=MODEL,
)
OTHER = replace(NODE, rank=8, node="b")


def judged(first: NodeFacts, second: NodeFacts) -> list[Finding]:
    return [*judge_nodes((first, second)), *judge_network((first, second))]


def test_equal_nodes_are_left_alone():
    assert judged(NODE, OTHER) == []


@pytest.mark.parametrize(
    ("change", "id", "severity", "says"),
    [
        ({"versions": {**NODE.versions, "torch": "2.7.1"}}, "versions-differ", "error", "2.8.0 on a, 2.7.1 on b"),
        ({"versions": {**NODE.versions, "python": "3.12.1"}}, "versions-differ", "warning", "3.12.1 on b"),
        ({"versions": {"python": "3.11.9"}}, "versions-differ", "error", "none on b"),
        ({"driver": "535.2"}, "driver-differs", "warning", "535.2 on b"),
        ({"gpus": NODE.gpus[:7]}, "gpus-differ", "error", "8 on a, 7 on b"),
        ({"gpus": (replace(NODE.gpus[0], name="A100"), *NODE.gpus[1:])}, "gpus-differ", "warning", "A100"),
        ({"gpus": (replace(NODE.gpus[0], free_bytes=GIB), *NODE.gpus[1:])}, "gpu-taken", "warning", "79.0 GiB in use"),
        ({"unread": ("GPUs (no NVML)",)}, "facts-unread", "note", "no NVML"),
        ({"model": ModelFolder("~/m", "/home/b/m", False, {}, {})}, "model-missing", "error", "/home/b/m"),
        ({"model": replace(MODEL, sizes={**MODEL.sizes, "x": 1})}, "model-differs", "error", "/m: x"),
        ({"model": replace(MODEL, digests={"config.json": "bb"})}, "model-differs", "error", "config.json"),
        ({"environment": {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "eth0"}}, "interface-unknown", "error", "eth0"),
        ({"environment": {"NCCL_SOCKET_IFNAME": "eth"}, "interfaces": (*NODE.interfaces, Interface("eth1", ("10.1.0.1",), True, 0))},
         "interface-choice", "note", "GLOO_SOCKET_IFNAME"),
        ({"interfaces": (NODE.interfaces[0], NODE.interfaces[2]), "environment": {}}, "loopback-only", "warning", "docker0"),
        ({"rendezvous_interface": "docker0"}, "rendezvous-bridge", "warning", "docker0"),
        ({"infiniband": (HDR, HDR, HDR, replace(HDR, state="DOWN"))}, "infiniband-down", "warning", "mlx5_0:1 DOWN"),
        ({"infiniband": ()}, "infiniband-differs", "warning", "none on b"),
        ({"environment": {**NODE.environment, "NCCL_IB_DISABLE": "1"}}, "infiniband-off", "warning", "4 × InfiniBand 200 Gbit/s"),
        ({"environment": {**NODE.environment, "NCCL_ALGO": "Ring"}}, "network-variables-differ", "warning", "Ring on b"),
    ],
    ids=lambda value: value if isinstance(value, str) and value in CHECKS else "",
)  # fmt: skip
def test_a_node_that_differs_is_named(change: dict[str, object], id: str, severity: str, says: str):
    judgements = [finding for finding in judged(NODE, replace(OTHER, **change)) if finding.id == id]
    texts = [f"{finding.field} {finding.value} {finding.message}" for finding in judgements]
    assert any(finding.severity.value == severity for finding in judgements)
    assert any(says in text and re.search(r"\bb\b", text) for text in texts), texts


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("eth", {"eth0", "eth1"}),
        ("=eth", set()),
        ("=eth1", {"eth1"}),
        ("^eth,lo", {"docker0", "ib0"}),
        ("^=eth1", {"lo", "eth0", "docker0", "ib0"}),
        ("ib0,eth1", {"ib0", "eth1"}),
    ],
)
def test_nccl_reads_its_variable_so(value: str, names: set[str]):
    """The table of NCCL's user guide: prefixes, `=` exact, `^` all others."""
    there = [Interface(name, (), True, 0) for name in ("lo", "eth0", "eth1", "docker0", "ib0")]
    assert {each.name for each in chosen("NCCL_SOCKET_IFNAME", value, there)} == names


def test_infiniband_is_read_as_the_kernel_writes_it(tmp_path: Path):
    """Documentation/ABI/stable/sysfs-class-infiniband."""
    port = tmp_path / "sys/class/infiniband/mlx5_3/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (port / "link_layer").write_text("Ethernet\n")
    assert read_infiniband(tmp_path) == (InfinibandPort("mlx5_3", 1, "ACTIVE", 400.0, "Ethernet"),)


@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_bus_bandwidth_is_what_one_link_of_a_ring_carries(ranks: int):
    """Count it: each rank sends a chunk (1/n of the buffer) in n-1 steps, twice for an all-reduce."""
    buffer, seconds = 240.0, 3.0
    through_a_link = (ranks - 1) * buffer / ranks
    phases: dict[Collective, int] = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}
    for collective, times in phases.items():
        assert buffer / seconds * bus_factor(collective, ranks) == pytest.approx(times * through_a_link / seconds)


def bandwidth(seconds: float, *nodes: str, backend: str = "nccl") -> Bandwidth:
    return Bandwidth(nodes, 2 * len(nodes), "all-reduce", 256 << 20, seconds, backend)


def test_links_are_the_slower_nodes_and_half_of_them_is_expected():
    nodes = {"a": NODE, "b": replace(OTHER, infiniband=(HDR,) * 2)}
    link = link_of(bandwidth(1.0, "a", "b"), nodes)
    assert link is not None
    assert link.bytes_per_second == 2 * 200e9 / 8
    slow = (256 << 20) * 1.5 / (0.49 * link.bytes_per_second)
    assert [f.id for f in judge_pace(Measurements("nccl", (bandwidth(slow, "a", "b"),)), nodes)] == ["bandwidth-low"]
    assert list(judge_pace(Measurements("nccl", (bandwidth(slow * 0.9, "a", "b"),)), nodes)) == []
    # gloo goes through the interface, and says nothing of NCCL.
    over_tcp = link_of(bandwidth(1.0, "a", "b", backend="gloo"), nodes)
    assert over_tcp is not None
    assert over_tcp.bytes_per_second == 25e9 / 8
    assert list(judge_pace(Measurements("gloo", (bandwidth(60.0, "a", "b", backend="gloo"),)), nodes)) == []


def test_the_slow_pair_the_slow_rank_and_the_wrong_clock_are_named():
    nodes = {name: replace(NODE, node=name, infiniband=(), interfaces=()) for name in "abc"}
    measured = Measurements(
        "nccl",
        (bandwidth(1.0, "a", "b"), bandwidth(1.1, "a", "c"), bandwidth(5.0, "b", "c")),
        tuple(StepClock(rank, "abc"[rank], seconds, 0.0) for rank, seconds in enumerate((0.010, 0.011, 0.020))),
        (WallClock("b", 0.4, 0.001), WallClock("c", -2.0, 0.5)),
    )
    found = {finding.id: f"{finding.field} {finding.value}" for finding in judge_pace(measured, nodes)}
    assert set(found) == {"bandwidth-uneven", "straggler", "clock-skew"}
    assert "b and c" in found["bandwidth-uneven"]
    assert found["straggler"] == "rank 2 on node c 1.82 × the median"
    assert found["clock-skew"].startswith("clock of node c -2.00 s")


@pytest.mark.parametrize(("count", "pairs"), [(1, 0), (2, 1), (8, 28), (9, 9)])
def test_every_node_is_measured_within_and_with_others(count: int, pairs: int):
    pytest.importorskip("torch")
    from wizard.cluster.measure import groups_of

    groups = groups_of([f"n{rank // 2}" for rank in range(2 * count)])
    assert [group.ranks for group in groups if len(group.nodes) == 1] == [(2 * n, 2 * n + 1) for n in range(count)]
    between = [group for group in groups if len(group.nodes) == 2]
    assert len({frozenset(group.nodes) for group in between}) == len(between) == pairs
    assert all(len(group.ranks) == 4 for group in between)


def test_every_finding_is_explained():
    text = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == set(CHECKS)
