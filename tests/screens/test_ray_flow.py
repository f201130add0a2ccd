"""A validation over two Ray nodes, started from the screen by keys alone at 80×24."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from screen_driver import drawn, said, to_step, until

from screens.app import WizardApp
from screens.validate import ValidateScreen
from wizard.model.catalog import preset
from wizard.model.tiny import ensure_tiny
from wizard.plan import Plan

RUN_SECONDS = 90


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("ray", reason="Ray is not installed in this interpreter")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield
    cluster.shutdown()


async def test_two_ray_nodes_pass_from_the_screen(app: WizardApp, two_nodes: None) -> None:
    ensure_tiny()
    app.session.begin(Plan(architecture=preset("tiny")))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await to_step(pilot, "validate")
        assert isinstance(screen, ValidateScreen)
        screen.set_focus(screen.query_one("#nodes"))
        await pilot.press("3", "enter")
        await until(pilot, lambda: not screen.running, RUN_SECONDS)
        assert "cannot be spread evenly" in said(pilot, "#verdict")
        screen.set_focus(screen.query_one("#nodes"))
        await pilot.press("backspace", "2", "enter")
        assert screen.running
        await until(pilot, lambda: not screen.running, RUN_SECONDS)
        assert said(pilot, "#verdict") == "Passed: every step ran on every rank."
        assert screen._run is not None
        assert len({state.node for state in screen._run.state.ranks.values()}) == 2
        await pilot.pause()
        assert "2/2" in drawn(pilot)
