"""Two torchruns on this machine, each as a node of its own, started as a person starts them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from wizard.nodes import reach
from wizard.plan import Model, Plan
from wizard.plan_file import FILE_NAME, plan_to_yaml

pytest.importorskip("torch")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def validate(plan: Path, node: int, endpoint: str) -> subprocess.Popen[str]:
    arguments = ["--cpu", "--json", "--nnodes", "2", "--node-rank", str(node), "--rdzv-endpoint", endpoint]
    return subprocess.Popen(
        [sys.executable, "-m", "wizard", "validate", str(plan), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "VERL_WIZARD_NODE": f"machine{node}", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / FILE_NAME).write_text(plan_to_yaml(Plan(model=Model(id="tiny"))))
    return tmp_path


def test_two_nodes_meet_and_each_tells_its_own_ranks(plan: Path):
    endpoint = f"127.0.0.1:{free_port()}"
    nodes = [validate(plan, node, endpoint) for node in (0, 1)]
    told = []
    try:
        for node in nodes:
            out, error = node.communicate(timeout=100)
            assert node.returncode == 0, out[-2000:] + error
            told.append([json.loads(line) for line in out.splitlines()])
    finally:
        for node in nodes:
            node.kill()
    for node, lines in enumerate(told):
        *events, verdict = lines
        assert verdict["outcome"] == "passed"
        assert {(event["rank"], event["node"]) for event in events} == {(node, f"machine{node}")}
        worlds = [event["data"]["world_size"] for event in events if "world_size" in event["data"]]
        assert worlds == [2]


def test_a_meeting_point_that_cannot_be_reached_is_named():
    port = free_port()
    problem = reach.wait_for("127.0.0.1", port, 0.1)
    assert "refused" in problem.lower()


def test_options_that_do_not_fit_are_refused(plan: Path):
    for endpoint, node, named in (("", 0, "--rdzv-endpoint"), ("127.0.0.1:1", 2, "--node-rank 2")):
        process = validate(plan, node, endpoint)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 2
        assert named in error
