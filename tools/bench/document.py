"""The tables of docs/bench.md: every machine's kept results, so that the page cannot go stale by hand."""

from __future__ import annotations

import json
from pathlib import Path

from tools.bench.results import FOLDER, HEADS, kept, rows

DOCUMENT = Path(__file__).parents[2] / "docs" / "bench.md"
BEGIN, END = "<!-- results -->", "<!-- end results -->"


def write_document(document: Path = DOCUMENT, folder: Path = FOLDER) -> None:
    """Put the tables between the marks of the page."""
    head, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    text = f"{head}{BEGIN}\n{tables(folder)}\n{END}{rest.partition(END)[2]}"
    document.write_text(text, encoding="utf-8")


def tables(folder: Path = FOLDER) -> str:
    """Return one table for each machine, as Markdown."""
    return "\n\n".join(_table(path) for path in sorted(folder.glob("*.json")))


def _table(path: Path) -> str:
    data = json.loads(path.read_text(encoding="utf-8"))
    machine, dates = data["machine"], sorted({entry["date"] for entry in data["results"]})
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    loads = [entry["load"] for entry in data["results"]]
    lines = [
        f"### {machine['cpu']}, {machine['cpus']} CPUs{gpu}",
        "",
        f"Measured {when} with Python {machine['python']}; load of the machine {min(loads):g} to {max(loads):g}.",
        "",
        f"| {' | '.join((*HEADS, 'more'))} |",
        f"|{'---|' * (len(HEADS) + 1)}",
    ]
    results = kept(path)
    return "\n".join(
        [*lines, *(f"| {' | '.join((*row, r.note))} |" for row, r in zip(rows(results), results, strict=True))]
    )
