"""`verl-wizard cluster [DIR|PLAN]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from wizard.cluster.check import ClusterCheck, ClusterReport, check_spec
from wizard.cluster.spec import CheckSpec
from wizard.cluster.text import report_text
from wizard.commands.options import fail, reason
from wizard.commands.run_options import (
    add_launch_options,
    add_rank_options,
    cancel_on_signals,
    gpus_at_hand,
    launch_of,
    run_options_error,
)
from wizard.commands.validate import EXIT_CODES, read_plan
from wizard.findings_text import finding_data
from wizard.nodes.requirements import NodeError
from wizard.plan import Plan, PlanError
from wizard.probe.machine import probe_machine
from wizard.validation.launch import Launch
from wizard.verl.export import plan_to_config
from wizard.verl.ray_demand import Demand, demand_of_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "target",
        type=Path,
        nargs="?",
        metavar="DIR|PLAN",
        help="folder that `generate` wrote, or a Plan",
    )
    parser.add_argument("--model", default="", metavar="DIR", help="folder every node must see (default: the Plan's)")
    add_rank_options(parser, "one a GPU, two without GPUs")
    add_launch_options(parser)
    parser.add_argument("--json", action="store_true", help="everything that was found, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check the nodes; exit 0 without an error among the findings, 1 with one, 130 when it was cancelled."""
    wrong = run_options_error(arguments)
    if wrong:
        return fail(wrong, 2)
    try:
        plan = read_plan(arguments.target) if arguments.target else Plan(machine=probe_machine())
        launch = launch_of(arguments, plan)
        gpus = gpus_at_hand(arguments, plan, launch)
        spec = check_spec(plan, launch, gpus, arguments.world_size, arguments.model)
        # Without a Plan there is nothing that verl would ask of Ray.
        demand = demand_of_plan(plan, plan_to_config(plan)) if arguments.target else None
        report = asyncio.run(_check(spec, arguments.python or plan.target.python, launch, demand))
    except (PlanError, NodeError) as error:
        return fail(str(error), 2)
    except OSError as error:
        return fail(reason(error), 2)
    if arguments.json:
        json.dump(_data(report), sys.stdout)
        print()
    else:
        Console(highlight=False).print(report_text(report))
    if report.verdict.outcome == "cancelled":
        return EXIT_CODES["cancelled"]
    return 1 if report.failed else 0


async def _check(spec: CheckSpec, python: str, launch: Launch, demand: Demand | None) -> ClusterReport:
    check = await ClusterCheck.start(spec, python, launch, demand)
    cancel_on_signals(check.run.cancel)
    print(f"verl-wizard: {spec.world_size} ranks, run folder {check.run.folder}", file=sys.stderr)
    async for _ in check.events():
        continue
    return check.report


def _data(report: ClusterReport) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(report)
    data["verdict"]["sentence"] = report.verdict.sentence
    data["findings"] = [finding_data(finding) for finding in report.findings]
    if report.measured is not None:
        for entry, one in zip(data["measured"]["bandwidths"], report.measured.bandwidths, strict=True):
            entry["algorithm_bytes_per_second"] = one.algorithm_bytes_per_second
            entry["bus_bytes_per_second"] = one.bus_bytes_per_second
    return data
