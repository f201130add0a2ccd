"""Step 2: the GPUs of this machine, or the machine that is planned for."""

from __future__ import annotations

import dataclasses
import threading
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import DataTable, Input, Label, Select, Static

from screens.base import StepScreen
from wizard.facts import Machine
from wizard.plan import Plan
from wizard.probe.gpu_report import GpuReport
from wizard.probe.gpu_text import COLUMNS, all_cells, link_lines, notes, process_lines, summary
from wizard.probe.gpus import GpuReader
from wizard.probe.host import Host, read_host
from wizard.probe.machine import (
    FORM,
    MachineError,
    machine_from,
    machine_text,
    parse_machine,
    parse_nodes,
    same_hardware,
)
from wizard.steps import step_of
from wizard.text import gib, printable

REFRESH_SECONDS = 1.0
PROBED, CPU, DESCRIBED = "probed", "cpu", "described"
SOURCES = {PROBED: "the GPUs of this machine", CPU: "the CPU only", DESCRIBED: "the machine described below"}


class GpusScreen(StepScreen):
    """A live table of what is here, and the choice of what is planned for."""

    DEFAULT_CSS = """
    GpusScreen DataTable { height: auto; max-height: 11; }
    GpusScreen #about { height: auto; max-height: 8; color: $text-muted; }
    GpusScreen #about:focus { background: $panel; }
    GpusScreen .line { height: 1; }
    GpusScreen Label.name { width: 14; }
    GpusScreen #source, GpusScreen #description { width: 1fr; }
    GpusScreen #nodes { width: 8; }
    GpusScreen #problem { height: auto; color: $text-error; }
    GpusScreen #planned { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f5", "read", "Read again", id="read-gpus")]

    step_id = "gpus"
    intro = "The machine the run is planned for: this one, or one you describe."
    findings_of = step_of("gpus").findings_of
    guide = (
        "The table is read from the driver once a second, without using the GPUs. The column CUDA is the number a CUDA "
        "process gives the device; `hidden` means that CUDA_VISIBLE_DEVICES leaves it out. `?` could not be read. "
        f"A machine is described as {FORM}. CPU only validates with gloo."
    )

    class Read(Message):
        """The driver was read by the watcher that `watch` ends."""

        def __init__(self, report: GpuReport, host: Host, watch: threading.Event) -> None:
            super().__init__()
            self.report, self.host, self.watch = report, host, watch

    def __init__(self) -> None:
        super().__init__()
        self._report: GpuReport | None = None
        self._host: Host | None = None
        self._cells: dict[str, tuple[str, ...]] = {}
        self._stop: threading.Event | None = None
        self._shown: Machine | None = None
        """The machine that the fields show."""
        self._written = {"source": CPU, "description": "", "nodes": "1"}
        """What the fields hold, by their ids."""

    def compose_step(self) -> ComposeResult:
        with Horizontal(classes="line"):
            yield Label("plan for", classes="name")
            options = [(label, name) for name, label in SOURCES.items() if name != PROBED]
            yield Select(options, value=CPU, allow_blank=False, id="source", compact=True)
        with Horizontal(classes="line"):
            yield Label("described as", classes="name")
            yield Input(placeholder=FORM, id="description", compact=True)
        with Horizontal(classes="line"):
            yield Label("nodes", classes="name")
            yield Input("1", id="nodes", type="integer", compact=True)
        yield Static("", id="problem", markup=False)
        yield Static("", id="planned", markup=False)
        yield Static("Reading the GPUs …", id="summary", markup=False)
        yield DataTable(id="gpus", cursor_type="row")
        with VerticalScroll(id="about"):
            yield Static("", id="connections", markup=False)

    def on_mount(self) -> None:
        for column in COLUMNS:
            self._table.add_column(column, key=column)
        self._table.display = False
        self.query_one("#about").display = False
        self.query_one("#source", Select).focus()

    def on_screen_resume(self) -> None:
        self.action_read()

    def on_screen_suspend(self) -> None:
        self._stop_watching()

    def on_unmount(self) -> None:
        self._stop_watching()

    def action_read(self) -> None:
        """Read everything again, then watch what changes."""
        self._stop_watching()
        self._stop = threading.Event()
        self._watch(self.app.plan.target.python, self._stop)

    def _stop_watching(self) -> None:
        if self._stop is not None:
            self._stop.set()

    @work(thread=True, group="gpus")
    def _watch(self, python: str, stop: threading.Event) -> None:
        with GpuReader(python, stop=stop) as reader:
            host = read_host()
            report = reader.read()
            self.post_message(self.Read(report, host, stop))
            while report.nvml == "ok" and not stop.wait(REFRESH_SECONDS):
                before, report = report, reader.refresh(report)
                if report != before:
                    self.post_message(self.Read(report, host, stop))

    def on_gpus_screen_read(self, event: Read) -> None:
        if event.watch is not self._stop:
            return
        first = self._report is None
        self._report, self._host = event.report, event.host
        self._draw(event.report)
        if first:
            self._offer(with_probed=bool(event.report.visible.devices))
            if self.app.plan.machine == Machine():
                self.app.set_plan(dataclasses.replace(self.app.plan, machine=self._probed()))
            self.plan_changed(self.app.plan)

    def plan_changed(self, plan: Plan) -> None:
        """Show the planned machine; the fields follow when someone else than they changed it, such as undo."""
        machine = plan.machine
        self._update("#planned", _planned(machine))
        if machine == self._shown:
            return
        self._shown = machine
        source = self._source_of(machine)
        self._write("source", source)
        self._write("nodes", str(machine.nodes))
        if source == DESCRIBED:
            self._write("description", machine_text(machine))
        self._update("#problem", "")

    @on(Select.Changed)
    @on(Input.Changed)
    def _field_changed(self, event: Select.Changed | Input.Changed) -> None:
        """Take what the person changed: not a field's echo of what it was made with or what was written into it."""
        event.stop()
        field = event.control.id or ""
        if event.value != event.control.value or event.value == self._written.get(field):
            return
        self._written[field] = str(event.value)
        if field == "description":
            self._write("source", DESCRIBED)
        if field == "source" and event.value == DESCRIBED:
            self.query_one("#description", Input).focus()
        self._take_chosen()

    def _write(self, field: str, value: str) -> None:
        self._written[field] = value
        if field == "source":
            self.query_one("#source", Select).value = value
        else:
            self.query_one(f"#{field}", Input).value = value

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#gpus", DataTable)

    def _offer(self, *, with_probed: bool) -> None:
        """Offer this machine's GPUs only where CUDA would see one."""
        options = [(label, name) for name, label in SOURCES.items() if name != PROBED or with_probed]
        self._written["source"] = options[0][1]
        # New options choose the first one: nobody did, and something may be typed already.
        with self.prevent(Select.Changed):
            self.query_one("#source", Select).set_options(options)
        self._shown = None

    def _take_chosen(self) -> None:
        """Plan for the chosen machine, or say what keeps the typed one from being understood."""
        try:
            machine = dataclasses.replace(self._chosen(), nodes=parse_nodes(self.query_one("#nodes", Input).value))
        except MachineError as error:
            self._update("#problem", printable(str(error)))
            return
        self._update("#problem", "")
        self._shown = machine
        self.app.set_plan(dataclasses.replace(self.app.plan, machine=machine))

    def _chosen(self) -> Machine:
        source = self.query_one("#source", Select).value
        if source == DESCRIBED:
            return parse_machine(self.query_one("#description", Input).value)
        probed = self._probed()
        if source == PROBED:
            return probed
        return Machine(host_memory_bytes=probed.host_memory_bytes, host_cpus=probed.host_cpus)

    def _probed(self) -> Machine:
        host = self._host if self._host is not None else read_host()
        return machine_from(self._report if self._report is not None else GpuReport("absent"), host)

    def _source_of(self, machine: Machine) -> str:
        if not machine.gpus_per_node:
            return CPU
        return PROBED if same_hardware(machine, self._probed()) else DESCRIBED

    def _draw(self, report: GpuReport) -> None:
        """Update the cells that changed; a row more or less draws the table anew."""
        cells = all_cells(report)
        if cells.keys() != self._cells.keys():
            self._table.clear()
            for key, row in cells.items():
                self._table.add_row(*(Text(printable(cell)) for cell in row), key=key)
            self._table.display = bool(cells)
        else:
            for key, row in cells.items():
                for column, cell, before in zip(COLUMNS, row, self._cells[key], strict=True):
                    if cell != before:
                        self._table.update_cell(key, column, Text(printable(cell)), update_width=True)
        self._cells = cells
        self._update("#summary", _lines([summary(report), *notes(report)]))
        connections = _lines([*link_lines(report), *process_lines(report)])
        self._update("#connections", connections)
        self.query_one("#about").display = bool(connections)

    def _update(self, selector: str, text: str) -> None:
        """Change a line only when it differs: an idle screen sends nothing."""
        widget = self.query_one(selector, Static)
        if str(widget.content) != text:
            widget.update(text)


def _planned(machine: Machine) -> str:
    if not machine.gpus_per_node:
        return "Planned: the CPU, with gloo."
    ranks = machine.world_size
    parts = [
        machine.gpu_name or "GPU",
        gib(machine.gpu_memory_bytes) if machine.gpu_memory_bytes else "memory unknown",
        f"compute capability {machine.compute_capability}" if machine.compute_capability else "",
        {"nvlink": "NVLink", "pcie": "PCIe", "unknown": ""}[machine.interconnect],
        f"{gib(machine.host_memory_bytes)} host memory" if machine.host_memory_bytes else "",
    ]
    kind = ", ".join(printable(part) for part in parts if part)
    return f"Planned: {machine.nodes} × {machine.gpus_per_node} = {ranks} ranks; {kind}."


def _lines(lines: list[str]) -> str:
    return "\n".join(printable(line) for line in lines)
