"""The cluster check over real nodes: three of Ray, and two torchruns in network namespaces of their own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.nodes.test_torchrun_nodes import free_port
from wizard.facts import Machine
from wizard.plan import Model, Plan
from wizard.plan_file import FILE_NAME, plan_to_yaml

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="network namespaces and /proc")

Found = dict[str, Any]


def check(*arguments: str, before: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-m", "wizard", "cluster", "--cpu", "--json", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )  # fmt: skip


def found(process: subprocess.Popen[str], code: int) -> Found:
    """Wait for a check and return its JSON."""
    out, error = process.communicate(timeout=150)
    assert process.returncode == code, out[-3000:] + error
    report: Found = json.loads(out)
    return report


def of(report: Found, id: str) -> list[Found]:
    return [finding for finding in report["findings"] if finding["id"] == id]


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    """Two home directories, of which the second lacks the model."""
    home, other = tmp_path / "home", tmp_path / "other"
    (home / "models" / "tiny").mkdir(parents=True)
    (home / "models" / "tiny" / "config.json").write_text("{}")
    other.mkdir()
    return home, other


@pytest.fixture
def cluster(homes: tuple[Path, Path]) -> Iterator[Any]:
    """Three nodes of one CPU; the last has another home directory."""
    pytest.importorskip("ray", reason="Ray is not installed in this interpreter")
    from ray.cluster_utils import Cluster

    home, other = ({"HOME": str(folder)} for folder in homes)
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "env_vars": home}
    )
    made.add_node(num_cpus=1, env_vars=home)
    made.add_node(num_cpus=1, env_vars=other)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def test_ray_nodes_are_compared_measured_and_held_against_the_plan(
    cluster: Any, homes: tuple[Path, Path], tmp_path: Path
):
    plan = Plan(machine=Machine(nodes=2, gpus_per_node=8), model=Model(id="~/models/tiny"))
    (tmp_path / FILE_NAME).write_text(plan_to_yaml(plan))
    arguments = ("--launcher", "ray", "--nodes", "3", "--address", cluster.address)
    report = found(check(str(tmp_path), *arguments, HOME=str(homes[0])), 1)

    names = [node["node"] for node in report["nodes"]]
    assert len(set(names)) == 3
    for node in report["nodes"]:
        assert node["versions"]["python"] == platform.python_version()
        for package in ("torch", "transformers", "ray"):
            assert node["versions"][package] == importlib.metadata.version(package)
        assert {each["name"]: each["is_up"] for each in node["interfaces"]} == {
            name: state.isup for name, state in psutil.net_if_stats().items() if name in psutil.net_if_addrs()
        }

    # The model is missing where the home directory is another one.
    [without] = [node["node"] for node in report["nodes"] if node["model"]["resolved"].startswith(str(homes[1]))]
    [missing] = of(report, "model-missing")
    assert missing["field"] == f"model on node {without}"
    assert (missing["value"], missing["severity"]) == ("~/models/tiny", "error")
    assert str(homes[1] / "models/tiny") in missing["message"]

    measured = report["measured"]
    assert measured["backend"] == "gloo"
    assert {frozenset(one["nodes"]) for one in measured["bandwidths"]} == {
        frozenset(pair) for pair in ((names[0], names[1]), (names[0], names[2]), (names[1], names[2]))
    }
    for one in measured["bandwidths"]:
        # nccl-tests doc/PERFORMANCE.md with n = 2: all-reduce 2(n-1)/n = 1, the others (n-1)/n = 1/2.
        factor = {"all-reduce": 1, "all-gather": 0.5, "reduce-scatter": 0.5}[one["collective"]]
        assert one["algorithm_bytes_per_second"] == pytest.approx(one["bytes"] / one["seconds"])
        assert one["bus_bytes_per_second"] == pytest.approx(one["algorithm_bytes_per_second"] * factor)
        # No memory of today moves more than a terabyte a second through a socket.
        assert 1e4 < one["bus_bytes_per_second"] < 1e12
    assert sorted(step["rank"] for step in measured["steps"]) == [0, 1, 2]
    # One machine has one clock.
    assert len(measured["clocks"]) == 2
    assert all(abs(clock["ahead_seconds"]) <= clock["error_seconds"] + 0.001 for clock in measured["clocks"])

    # Ray itself says that no node has a GPU; verl would wait for its pool.
    assert [node["total"]["CPU"] for node in report["ray_nodes"]] == [1, 1, 1]
    pools = {finding["field"]: finding for finding in of(report, "ray-bundle")}
    assert pools["global_pool, node"]["value"] == "0, 1"
    assert all(name in pools["global_pool, node"]["message"] for name in names)
    assert "8 GPUs and 24 CPUs" in pools["global_pool, node"]["message"]


@dataclass(frozen=True)
class TwoNetworks:
    """A network namespace joined to this one by a pair of interfaces; names differ between test processes."""

    number: int = os.getpid() % 10000

    @property
    def namespace(self) -> str:
        return f"vw{self.number}"

    @property
    def interfaces(self) -> tuple[str, str]:
        """Here, there."""
        return f"vw{self.number}a", f"vw{self.number}b"

    @property
    def addresses(self) -> tuple[str, str]:
        """Here, there."""
        net = f"10.{128 + self.number // 256}.{self.number % 256}"
        return f"{net}.1", f"{net}.2"

    @property
    def commands(self) -> list[str]:
        """What makes it."""
        (here, there), (at_here, at_there) = self.interfaces, self.addresses
        return [
            f"ip netns add {self.namespace}",
            f"ip link add {here} type veth peer name {there} netns {self.namespace}",
            f"ip addr add {at_here}/30 dev {here}",
            f"ip link set {here} up",
            f"ip -n {self.namespace} addr add {at_there}/30 dev {there}",
            f"ip -n {self.namespace} link set {there} up",
            f"ip -n {self.namespace} link set lo up",
        ]


@pytest.fixture
def networks() -> Iterator[TwoNetworks]:
    """Two networks, where the system permits them."""
    made = TwoNetworks()
    try:
        for command in made.commands:
            try:
                subprocess.run(command.split(), check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                reason = getattr(error, "stderr", None) or str(error)
                pytest.skip(f"no network namespaces here: {command}: {reason.strip()}")
        yield made
    finally:
        if shutil.which("ip"):
            # The interfaces go with the namespace.
            subprocess.run(["ip", "netns", "delete", made.namespace], check=False, capture_output=True)


@pytest.mark.parametrize("right", [True, False])
def test_nodes_in_networks_of_their_own(networks: TwoNetworks, right: bool):
    """Each node sees its own interfaces; a wrong name of one is told by both, with those that are there."""
    way_here, way_there = networks.interfaces
    endpoint = f"{networks.addresses[0]}:{free_port()}"
    here = check("--nodes", "2", "--rdzv-endpoint", endpoint, VERL_WIZARD_NODE="here", GLOO_SOCKET_IFNAME=way_here)
    there = check(
        "--nodes", "2", "--rdzv-endpoint", endpoint, "--node-rank", "1",
        before=("ip", "netns", "exec", networks.namespace),
        VERL_WIZARD_NODE="there", GLOO_SOCKET_IFNAME=way_there if right else "eth77",
    )  # fmt: skip
    try:
        reports = [found(process, 0 if right else 1) for process in (here, there)]
    finally:
        for process in (here, there):
            process.kill()
    for report in reports:
        nodes = {node["node"]: node for node in report["nodes"]}
        inside = {each["name"]: each for each in nodes["there"]["interfaces"]}
        assert set(inside) == {"lo", way_there}
        assert inside[way_there]["addresses"][0] == networks.addresses[1]
        assert inside[way_there]["speed_mbit"] == psutil.net_if_stats()[way_here].speed
        assert {name: node["rendezvous_interface"] for name, node in nodes.items()} == {
            "here": way_here,
            "there": way_there,
        }
        assert bool(report["measured"]) == right
        named = of(report, "interface-unknown")
        assert [finding["field"] for finding in named] == ([] if right else ["GLOO_SOCKET_IFNAME on node there"])
        if not right:
            assert named[0]["value"] == "eth77"
            assert f"lo, {way_there}" in named[0]["message"]
            [ended] = of(report, "cluster-run")
            assert "node there" in ended["message"]
