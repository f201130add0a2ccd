"""The doctor's report as lines for people."""

from __future__ import annotations

from wizard.probe.environment import EnvironmentReport, read_environment
from wizard.probe.gpu_report import GpuReport
from wizard.probe.gpu_text import COLUMNS, all_cells, link_lines, notes, process_lines, summary
from wizard.probe.gpus import read_gpus
from wizard.probe.host import Host, read_host
from wizard.text import gib, printable, table


def ask_doctor(python: str) -> str:
    """Return the report on a target interpreter and this node; importing torch there takes seconds."""
    gpus = read_gpus(python)
    return doctor_text(read_environment(python, gpus=gpus), gpus, read_host())


def doctor_text(environment: EnvironmentReport, gpus: GpuReport, host: Host) -> str:
    """Return versions, GPUs and host as three tables."""
    return "\n".join([*_environment_lines(environment), "", *_gpu_lines(gpus), "", *_host_lines(host)])


def _environment_lines(report: EnvironmentReport) -> list[str]:
    """Return the table of versions, then the commands that put it right."""
    rows = [(row.name, row.version, row.state.value.upper(), row.reason) for row in report.rows]
    lines = ["Environment", table(("package", "version", "state", "why"), rows)]
    remedies = [(row.name, row.install) for row in report.rows if row.install]
    if remedies:
        lines += ["", "To install", *(f"  {printable(command)}" for _, command in remedies)]
    return lines


def _gpu_lines(report: GpuReport) -> list[str]:
    """Return the GPUs, what holds their memory, how they are connected, and remarks."""
    lines = ["GPUs", f"  {printable(summary(report))}"]
    if report.gpus:
        lines.append(table(COLUMNS, list(all_cells(report).values())))
    lines += (f"  {printable(line)}" for line in (*link_lines(report), *process_lines(report), *notes(report)))
    return lines


def _host_lines(host: Host) -> list[str]:
    """Return memory, CPUs and shared memory of this node."""
    limit = "limit of the cgroup" if host.memory_source == "cgroup" else "all of the machine"
    return [
        "Host",
        f"  memory     {gib(host.memory_bytes)} ({limit}), {gib(host.available_bytes)} available",
        f"  CPUs       {host.cpus}",
        f"  swap       {gib(host.swap_bytes)}",
        f"  /dev/shm   {gib(host.shm_bytes)}, {gib(host.shm_free_bytes)} free",
    ]
