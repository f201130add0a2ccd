"""What was measured: one line of the table each, kept in a file for each machine."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from wizard import __version__

FOLDER = Path(__file__).parents[2] / "measurements" / "bench"


@dataclass(frozen=True)
class Result:
    """One measured value, what it is held against, and the most it may be."""

    group: str
    name: str
    value: float
    unit: str
    limit: float | None = None
    """The budget, in `unit`; of the ratio where there is a peer."""
    peer: str = ""
    peer_value: float | None = None
    """What the peer took in the same run, in `unit`."""
    samples: int = 1
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The value over the peer's."""
        return self.value / self.peer_value if self.peer_value else None

    @property
    def met(self) -> bool | None:
        """Whether the budget is kept; None without one."""
        held = self.value if self.peer_value is None else self.ratio
        return None if self.limit is None or held is None else held <= self.limit


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one thing."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def p95(self) -> float:
        """What 95 of 100 stay under."""
        return statistics.quantiles(self.values, n=20, method="inclusive")[-1]


def spread_note(spread: Spread) -> str:
    """Return what a spread of milliseconds is beside its p95."""
    return f"median {spread.median:.1f} ms, longest {max(spread.values):.0f} ms"


def machine() -> dict[str, object]:
    """Return what the numbers were measured on, without a name of the host."""
    return {
        "name": machine_name(_cpu(), os.cpu_count() or 1, _gpu()),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "verl_wizard": __version__,
    }


def machine_name(cpu: str, cpus: int, gpu: str) -> str:
    """Return the name of a machine's results: `amd-epyc-2-cpus`."""
    name = f"{cpu} {cpus} cpus {gpu}".lower().replace("(r)", "").replace("(tm)", "")
    return re.sub(r"[^a-z0-9.]+", "-", name).strip("-")


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def _gpu() -> str:
    from wizard.probe.machine import probe_machine

    here = probe_machine()
    return f"{here.gpus_per_node} {here.gpu_name}" if here.gpus_per_node else ""


def keep(results: Sequence[Result], folder: Path = FOLDER) -> Path:
    """Write the results to the machine's file and return it; groups that were not measured now stay as they are."""
    here = machine()
    path = folder / f"{here['name']}.json"
    now = time.strftime("%Y-%m-%d")
    new = [dataclasses.asdict(result) | {"date": now, "load": round(os.getloadavg()[0], 2)} for result in results]
    groups = {result.group for result in results}
    old = json.loads(path.read_text())["results"] if path.exists() else []
    kept = [entry for entry in old if entry["group"] not in groups]
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": here, "results": [*kept, *new]}, indent=1) + "\n")
    return path


def kept(path: Path) -> list[Result]:
    """Read a machine's results."""
    names = {field.name for field in dataclasses.fields(Result)}
    entries = json.loads(path.read_text())["results"]
    return [Result(**{name: value for name, value in entry.items() if name in names}) for entry in entries]


HEADS = ("", "measured", "peer", "ratio", "budget", "")


def rows(results: Sequence[Result]) -> list[tuple[str, str, str, str, str, str]]:
    """Return the table's rows as text: what, measured, peer, ratio, budget, kept or missed."""
    return [
        (
            f"{result.group}: {result.name}",
            _number(result.value, result.unit),
            f"{_number(result.peer_value, result.unit)} ({result.peer})" if result.peer_value is not None else "",
            f"{result.ratio:.3f}×" if result.ratio is not None else "",
            _limit(result),
            {True: "kept", False: "MISSED", None: ""}[result.met],
        )
        for result in results
    ]


def _limit(result: Result) -> str:
    if result.limit is None:
        return ""
    return f"≤ {result.limit:g}×" if result.peer_value is not None else f"≤ {_number(result.limit, result.unit)}"


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if unit == "B/s" or value >= 100 else f"{value:.3g} {unit}"


def table(results: Sequence[Result]) -> Table:
    """Return the table of a run."""
    found = Table(*HEADS)
    for row, result in zip(rows(results), results, strict=True):
        found.add_row(*row, style="red" if result.met is False else "")
    return found
