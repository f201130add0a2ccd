"""`make bench`: measure, print one table, keep it for this machine, and write docs/bench.md from what is kept.

python -m tools.bench                     # everything but the long soak
python -m tools.bench live idle           # some groups
python -m tools.bench flood --soak-seconds 600
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from rich.console import Console

from tools.bench.document import write_document
from tools.bench.results import FOLDER, Result, keep, machine, table

SHORT_SOAK_SECONDS = 20.0


def _groups(soak_seconds: float) -> dict[str, Callable[[], list[Result]]]:
    """Return what can be measured; each is imported when it is asked for, as a step's needs torch."""

    def step() -> list[Result]:
        from tools.bench.step import validation_step

        return validation_step()

    from tools.bench import commands, live, startup

    return {
        "idle": live.idle,
        "live": live.live,
        "flood": lambda: live.flood(soak_seconds),
        "start-up": startup.first_paint,
        "keys": startup.keys,
        "commands": commands.check_and_estimate,
        "inspector": commands.inspector,
        "validation": step,
    }


def main() -> int:
    """Measure the groups asked for; 1 when a budget is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="idle, live, flood, … (default: all)")
    parser.add_argument("--soak-seconds", type=float, default=SHORT_SOAK_SECONDS, metavar="S", help="of the flood")
    parser.add_argument("--no-document", action="store_true", help="leave docs/bench.md as it is")
    arguments = parser.parse_args()
    groups = _groups(arguments.soak_seconds)
    unknown = set(arguments.groups) - set(groups)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such group; there are {', '.join(groups)}")
    console = Console()
    console.print(f"{machine()['name']}, load {os.getloadavg()[0]:.1f}: other work on the machine makes times longer")
    results: list[Result] = []
    for name in arguments.groups or groups:
        console.print(f"measuring {name} …")
        results += groups[name]()
        path = keep(results)
    console.print(table(results))
    console.print(f"kept in {path.relative_to(FOLDER.parents[1])}")
    if not arguments.no_document:
        write_document()
    return 1 if any(result.met is False for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
