"""Validations over two Ray nodes, started from the screen by keys alone at 80×24."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psutil
import pytest
from screen_driver import drawn, said, to_step, until
from textual.pilot import Pilot

from screens.app import WizardApp
from screens.validate import ValidateScreen
from tests.nodes.conftest import cluster, processes_of  # noqa: F401
from wizard.model.catalog import preset
from wizard.model.tiny import ensure_tiny
from wizard.plan import Plan

RUN_SECONDS = 90


@pytest.fixture(autouse=True)
def two_nodes(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    ensure_tiny()


async def enter_nodes(pilot: Pilot[Any], nodes: str) -> ValidateScreen:
    """Start a run over so many Ray nodes."""
    screen = pilot.app.screen
    assert isinstance(screen, ValidateScreen)
    screen.set_focus(screen.query_one("#nodes"))
    await pilot.press("end", "backspace", nodes, "enter")
    return screen


async def test_two_ray_nodes_pass_from_the_screen(app: WizardApp) -> None:
    app.session.begin(Plan(architecture=preset("tiny")))
    async with app.run_test(size=(80, 24)) as pilot:
        await to_step(pilot, "validate")
        screen = await enter_nodes(pilot, "3")
        await until(pilot, lambda: "cannot be spread evenly" in said(pilot, "#verdict"), RUN_SECONDS)
        await enter_nodes(pilot, "2")
        await until(pilot, lambda: screen._run is not None and not screen.running, RUN_SECONDS)
        assert said(pilot, "#verdict") == "Passed: every step ran on every rank."
        assert screen._run is not None
        assert len({state.node for state in screen._run.state.ranks.values()}) == 2
        await pilot.pause()
        assert "2/2" in drawn(pilot)


def kill_node(node: Any) -> set[int]:
    """Kill a node's raylet and everything under it with SIGKILL; returns what was killed."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    killed = [raylet, *raylet.children(recursive=True)]
    for process in killed:
        process.kill()
    return {process.pid for process in killed}


async def test_a_killed_node_is_lost_on_the_screen(app: WizardApp, cluster: Any) -> None:  # noqa: F811
    """The last test of this cluster: one of its nodes is dead after it."""
    app.session.begin(Plan(architecture=preset("tiny")))
    async with app.run_test(size=(80, 24)) as pilot:
        await to_step(pilot, "validate")
        screen = await enter_nodes(pilot, "2")
        await until(pilot, lambda: screen._run is not None, RUN_SECONDS)
        run = screen._run
        assert run is not None
        await until(pilot, lambda: all(state.pid and state.done for state in run.state.ranks.values()), RUN_SECONDS)
        killed = await asyncio.to_thread(kill_node, next(iter(cluster.worker_nodes)))
        since = time.monotonic()
        await until(pilot, lambda: not screen.running, RUN_SECONDS)
        assert time.monotonic() - since < 15
        rank = next(rank for rank, state in run.state.ranks.items() if state.pid in killed)
        sentence = said(pilot, "#verdict")
        assert sentence.startswith("Lost in step ")
        assert f"on rank {rank} (node {run.state.ranks[rank].node})" in sentence
        assert not processes_of(run.folder)
        await pilot.pause()
        # What the terminal shows is wrapped: the words are compared, not the lines.
        assert " ".join(sentence.split()[:8]) in " ".join(drawn(pilot).split())
