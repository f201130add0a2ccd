"""Real validations over two Ray nodes on this machine, with gloo."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.nodes.conftest import follow, processes_of
from wizard.validation.events import Event
from wizard.validation.launch import RayCluster
from wizard.validation.launcher import Run
from wizard.validation.spec import ValidationSpec

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
Specs = Callable[..., ValidationSpec]


def groups_left(cluster: Any) -> list[str]:
    """States of the placement groups that are not removed, asked of Ray itself."""
    import ray
    from ray.util import placement_group_table

    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        return [group["state"] for group in placement_group_table().values() if group["state"] != "REMOVED"]
    finally:
        ray.shutdown()


def test_two_nodes_pass_every_step(cluster: Any, make_spec: Specs, tmp_path: Path):
    spec = make_spec()
    done, _ = follow(spec, tmp_path, RayCluster(2, cluster.address))
    assert done.verdict.outcome == "passed", done.verdict.sentence
    finished = {(event.rank, event.step) for event in done.events if event.kind == "step_finished"}
    assert finished == {(rank, step) for rank in (0, 1) for step in spec.steps}
    nodes = [{event.node for event in done.events if event.rank == rank} for rank in (0, 1)]
    assert [len(names) for names in nodes] == [1, 1]
    assert nodes[0] != nodes[1]
    # The proof that the ranks worked together: the loss over both is the whole model's.
    assert done.metric("parity_relative_difference") <= done.metric("parity_tolerance")
    assert not processes_of(tmp_path)
    assert not groups_left(cluster)


def test_a_hung_rank_on_another_node_says_where_it_is(cluster: Any, make_spec: Specs, tmp_path: Path):
    def stop(run: Run, event: Event) -> bool:
        if (event.rank, event.kind, event.step) != (1, "step_started", "benchmark"):
            return False
        psutil.Process(run.state.ranks[1].pid).suspend()
        return True

    spec = make_spec(benchmark_runs=5000, step_limit_seconds=4)
    done, _ = follow(spec, tmp_path, RayCluster(2, cluster.address), stop)
    assert done.verdict.outcome == "timed out", done.verdict.sentence
    stacks = {stack["rank"]: stack for stack in done.verdict.failure["stacks"]}
    assert stacks[1]["state"] == "stopped (SIGSTOP)"
    assert stacks[0]["frames"], done.verdict.sentence
    assert not processes_of(tmp_path)


def test_a_cluster_too_small_is_named_before_anything_starts(cluster: Any, make_spec: Specs, tmp_path: Path):
    done, _ = follow(make_spec(world_size=3), tmp_path / "missing", RayCluster(3, cluster.address))
    assert done.verdict.step == "nodes"
    assert "2 of the 3 nodes" in done.verdict.cause
    done, _ = follow(make_spec(world_size=6), tmp_path / "small", RayCluster(2, cluster.address))
    assert "has 2 CPUs, asked are 3" in done.verdict.cause
    assert not done.events[1:], "no rank may have started"


def test_no_cluster_is_named(make_spec: Specs, tmp_path: Path):
    pytest.importorskip("ray", reason="Ray is not installed in this interpreter")
    done, _ = follow(make_spec(), tmp_path, RayCluster(2, "127.0.0.1:1"))
    assert done.verdict.step == "nodes"
    assert "no Ray cluster at 127.0.0.1:1" in done.verdict.cause


def test_another_torch_on_a_node_is_named(cluster: Any, make_spec: Specs, tmp_path: Path):
    """The third node's interpreter finds another torch's metadata first."""
    folder = tmp_path / "site" / "torch-1.2.3.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n")
    # More CPUs than the others have, so that the run needs this node.
    node = cluster.add_node(num_cpus=3, env_vars={"PYTHONPATH": str(folder.parent)})
    head = cluster.add_node(num_cpus=3)
    try:
        cluster.wait_for_nodes()
        done, _ = follow(make_spec(world_size=6), tmp_path / "run", RayCluster(2, cluster.address))
    finally:
        cluster.remove_node(node)
        cluster.remove_node(head)
    assert done.verdict.step == "nodes"
    assert "has torch" in done.verdict.cause
    assert "has torch 1.2.3" in done.verdict.cause or "has 1.2.3" in done.verdict.cause


def test_a_killed_node_is_lost_with_its_name_and_rank(cluster: Any, make_spec: Specs, tmp_path: Path):
    """The last test of this cluster: one of its nodes is dead after it."""
    second = next(iter(cluster.worker_nodes))

    def kill(run: Run, event: Event) -> bool:
        if (event.rank, event.kind, event.step) != (1, "step_started", "benchmark"):
            return False
        cluster.remove_node(second, allow_graceful=False)
        return True

    done, seconds = follow(make_spec(benchmark_runs=5000), tmp_path, RayCluster(2, cluster.address), kill)
    assert done.verdict.outcome == "lost", done.verdict.sentence
    killed = next(rank for rank in (0, 1) if any(e.kind == "lost" and e.rank == rank for e in done.events))
    assert done.verdict.rank == killed
    node = next(event.node for event in done.events if event.rank == killed)
    assert node
    assert done.verdict.node == node
    assert node in done.verdict.sentence
    assert seconds < 15
    assert not processes_of(tmp_path)
