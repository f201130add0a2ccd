"""`verl-wizard doctor`: versions, GPUs and host, as the training would find them."""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from wizard.commands.options import add_python
from wizard.probe.environment import EnvironmentReport, read_environment
from wizard.probe.gpu_report import GpuReport
from wizard.probe.gpu_text import COLUMNS, all_cells, link_lines, notes, process_lines, summary
from wizard.probe.gpus import read_gpus
from wizard.probe.host import Host, read_host
from wizard.text import gib, printable, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_python(parser)
    parser.add_argument("--json", action="store_true", help="everything that was read, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the three reports; exit 1 when a row of the environment is FAIL."""
    if sys.stderr.isatty():
        print("Asking the interpreter, importing torch …", file=sys.stderr)
    gpus = read_gpus(arguments.python)
    environment = read_environment(arguments.python, gpus=gpus)
    host = read_host()
    if arguments.json:
        report = {"failed": environment.failed, "environment": environment, "gpus": gpus, "host": host}
        json.dump(msgspec.to_builtins(report), sys.stdout)
        print()
    else:
        print("\n".join([*environment_lines(environment), "", *gpu_lines(gpus), "", *host_lines(host)]))
    return 1 if environment.failed else 0


def environment_lines(report: EnvironmentReport) -> list[str]:
    """Return the table of versions, then the commands that put it right."""
    rows = [(row.name, row.version, row.state.value.upper(), row.reason) for row in report.rows]
    lines = ["Environment", table(("package", "version", "state", "why"), rows)]
    remedies = [(row.name, row.install) for row in report.rows if row.install]
    if remedies:
        lines += ["", "To install", *(f"  {printable(command)}" for _, command in remedies)]
    return lines


def gpu_lines(report: GpuReport) -> list[str]:
    """Return the GPUs, what holds their memory, how they are connected, and remarks."""
    lines = ["GPUs", f"  {printable(summary(report))}"]
    if report.gpus:
        lines.append(table(COLUMNS, list(all_cells(report).values())))
    lines += (f"  {printable(line)}" for line in (*link_lines(report), *process_lines(report), *notes(report)))
    return lines


def host_lines(host: Host) -> list[str]:
    """Return memory, CPUs and shared memory of this node."""
    limit = "limit of the cgroup" if host.memory_source == "cgroup" else "all of the machine"
    return [
        "Host",
        f"  memory     {gib(host.memory_bytes)} ({limit}), {gib(host.available_bytes)} available",
        f"  CPUs       {host.cpus}",
        f"  swap       {gib(host.swap_bytes)}",
        f"  /dev/shm   {gib(host.shm_bytes)}, {gib(host.shm_free_bytes)} free",
    ]
