"""The GPU step, driven by keys; NVML's answers are a table, so that failing and changing fields can be shown."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Select, Static

import screens.gpus
from screens.app import WizardApp
from screens.gpus import GpusScreen
from wizard.facts import Machine
from wizard.plan import Plan
from wizard.probe.gpus import GpuReader
from wizard.probe.host import read_host
from wizard.probe.machine import parse_machine

sys.path.insert(0, str(Path(__file__).parent.parent / "probe"))
from nvml_node import MIB, Node

SECONDS = 60


async def until(pilot: Pilot[Any], true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert pilot.app.is_running, "the application ended"
        assert time.monotonic() < deadline, "did not happen in time"
        await pilot.pause(0.02)


async def gpus_step(pilot: Pilot[Any]) -> GpusScreen:
    await pilot.pause()
    pilot.app.go("gpus")
    await until(pilot, lambda: isinstance(pilot.app.screen, GpusScreen))
    screen = pilot.app.screen
    assert isinstance(screen, GpusScreen)
    await until(pilot, lambda: screen._report is not None)
    return screen


def text(screen: GpusScreen, selector: str) -> str:
    return str(screen.query_one(selector, Static).content)


def cells(screen: GpusScreen) -> list[list[str]]:
    table = screen.query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


@pytest.fixture
def app(tmp_path: Path) -> Callable[..., WizardApp]:
    def make(machine: Machine | None = None) -> WizardApp:
        return WizardApp(Plan(machine=machine or Machine()), tmp_path / "verl-wizard.yaml")

    return make


@pytest.fixture
def with_node(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Node]:
    def use(node: Node, **environ: str) -> Node:
        monkeypatch.setattr(screens.gpus, "GpuReader", functools.partial(GpuReader, call=node, environ=environ))
        monkeypatch.setattr(screens.gpus, "REFRESH_SECONDS", 0.05)
        return node

    return use


async def test_without_a_driver_it_says_so_and_plans_for_the_cpu(
    app: Callable[..., WizardApp], with_node: Callable[..., Node]
) -> None:
    with_node(Node(nvmlInit=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    async with app().run_test(size=(80, 24)) as pilot:
        screen = await gpus_step(pilot)
        if screen._report is not None and screen._report.gpus:
            pytest.skip("torch sees GPUs here although NVML is refused")
        assert "NVML Shared Library Not Found" in text(screen, "#summary")
        await until(pilot, lambda: pilot.app.plan.machine.host_cpus > 0)
        host = read_host()
        assert pilot.app.plan.machine == Machine(host_memory_bytes=host.memory_bytes, host_cpus=host.cpus)
        assert [value for _, value in screen.query_one(Select)._options] == ["cpu", "described"]


async def test_the_gpus_that_are_there_are_planned_for(
    app: Callable[..., WizardApp], with_node: Callable[..., Node]
) -> None:
    with_node(Node(2), CUDA_VISIBLE_DEVICES="1")
    async with app().run_test(size=(80, 24)) as pilot:
        screen = await gpus_step(pilot)
        await until(pilot, lambda: pilot.app.plan.machine.gpus_per_node == 1)
        assert screen.query_one(Select).value == "probed"
        assert cells(screen) == [
            ["0", "NVIDIA H200", "139.8 GiB", "139.8 GiB", "9.0", "7%", "hidden"],
            ["1", "NVIDIA H200", "139.8 GiB", "139.8 GiB", "9.0", "7%", "0"],
        ]
        assert "NVLink NV18" in text(screen, "#connections")
        assert "pid 1073741824" in text(screen, "#connections")


async def test_only_the_cells_that_changed_are_drawn(
    app: Callable[..., WizardApp], with_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = with_node(Node(2))
    async with app().run_test(size=(80, 24)) as pilot:
        screen = await gpus_step(pilot)
        drawn: list[tuple[str, str]] = []
        update = DataTable.update_cell

        def recorded(self: DataTable[Any], row: str, column: str, value: Any, **options: Any) -> None:
            # The environment step behind this one fills its own table meanwhile.
            if self is screen._table:
                drawn.append((row, column))
            update(self, row, column, value, **options)

        monkeypatch.setattr(DataTable, "update_cell", recorded)
        reads = node.calls.count("nvmlDeviceGetUtilizationRates")
        await until(pilot, lambda: node.calls.count("nvmlDeviceGetUtilizationRates") > reads + 8)
        assert drawn == []
        node.used_mib["gpu1"] = 10240
        await until(pilot, lambda: bool(drawn))
        assert set(drawn) == {("1", "free")}
        assert cells(screen)[1][3] == "129.8 GiB"


async def test_watching_ends_with_the_step(app: Callable[..., WizardApp], with_node: Callable[..., Node]) -> None:
    node = with_node(Node(1))
    async with app().run_test(size=(80, 24)) as pilot:
        await gpus_step(pilot)
        pilot.app.go("environment")
        await until(pilot, lambda: node.calls[-1] == "nvmlShutdown")


async def test_a_failing_field_shows_a_question_mark_and_its_reason(
    app: Callable[..., WizardApp], with_node: Callable[..., Node]
) -> None:
    with_node(Node(1, nvmlDeviceGetUtilizationRates=pynvml.NVML_ERROR_NO_PERMISSION))
    async with app().run_test(size=(80, 24)) as pilot:
        screen = await gpus_step(pilot)
        assert cells(screen)[0][5] == "?"
        assert "utilisation percent not read: Insufficient Permissions" in text(screen, "#summary")


async def test_names_from_outside_are_text_not_markup(
    app: Callable[..., WizardApp], with_node: Callable[..., Node]
) -> None:
    class Named(Node):
        def _nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
            return "[red]H[/] \x1b[31mX [/nothing]"

    with_node(Named(1))
    async with app().run_test(size=(80, 24)) as pilot:
        screen = await gpus_step(pilot)
        assert cells(screen)[0][1] == "[red]H[/] �[31mX [/nothing]"


async def test_a_machine_is_described_with_the_keyboard_alone(
    app: Callable[..., WizardApp], with_node: Callable[..., Node]
) -> None:
    with_node(Node(nvmlInit=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    async with app().run_test(size=(80, 24)) as pilot:
        screen = await gpus_step(pilot)
        await pilot.press("tab", *"8x80GB", "comma", *"cc9.0", "comma", *"nvlin")
        assert "'nvlin' cannot be read" in text(screen, "#problem")
        assert screen.query_one("#description", Input).value == "8x80GB,cc9.0,nvlin"
        await pilot.press("k", "tab", "end", "backspace", "4")
        assert text(screen, "#problem") == ""
        assert pilot.app.plan.machine == parse_machine("8x80GB,cc9.0,nvlink", nodes=4)
        assert "4 × 8 = 32 ranks" in text(screen, "#planned")
        assert screen.query_one(Select).value == "described"
        await pilot.press("backspace")
        assert "nodes = ''" in text(screen, "#problem")
        assert pilot.app.plan.machine.nodes == 4


async def test_undo_brings_the_fields_back(app: Callable[..., WizardApp], with_node: Callable[..., Node]) -> None:
    with_node(Node(2))
    described = parse_machine("4xA100,ram=512GB,cpus=96", nodes=2)
    async with app(described).run_test(size=(80, 24)) as pilot:
        screen = await gpus_step(pilot)
        assert parse_machine(screen.query_one("#description", Input).value, nodes=2).gpu_memory_bytes == 81920 * MIB
        assert screen.query_one("#nodes", Input).value == "2"
        screen.query_one(Select).value = "probed"
        await until(pilot, lambda: pilot.app.plan.machine.gpu_name == "NVIDIA H200")
        pilot.app.action_undo()
        await pilot.pause()
        assert pilot.app.plan.machine == described
        assert screen.query_one(Select).value == "described"
