"""`verl-wizard estimate PLAN|DIR|--model MODEL`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from wizard.commands.options import add_model_access, fail, reason
from wizard.facts import Machine
from wizard.memory import Exact, Prediction, PredictionError, predict
from wizard.memory.roofline import StepTime, step_time
from wizard.memory.text import estimate_text
from wizard.model.errors import ModelError
from wizard.plan import Model, Plan, PlanError, Target, parse_value
from wizard.plan_file import FILE_NAME, load_plan
from wizard.probe.machine import FORM, MachineError, parse_machine

GPUS_A_NODE = 8
"""Of the machine that `--world-size` alone describes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("target", nargs="?", type=Path, metavar="PLAN|DIR", help="a Plan, or a folder with one")
    parser.add_argument("--model", default="", metavar="MODEL", help="estimate verl's defaults for this model instead")
    parser.add_argument("--gpus", default="", metavar="GPUS", help=f"GPUs of one node: {FORM}")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of that kind (default: 1)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="edits", help="change a field of the Plan"
    )
    parser.add_argument("--world-size", type=int, metavar="N", help="ranks of the training engine")
    parser.add_argument("--strategy", choices=("fsdp", "fsdp2"), help="short for --set actor.strategy=…")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens of one micro-batch on one GPU")
    parser.add_argument("--micro-batches", type=int, metavar="N", help="micro-batches of one update")
    parser.add_argument("--no-gradient-checkpointing", action="store_true", help="keep every layer's activations")
    parser.add_argument("--loss", choices=("flash", "v2", "ce32"), help="how log-probabilities come from logits")
    parser.add_argument("--entropy", choices=("none", "eager", "compiled", "chunked"), help="entropy in the update")
    parser.add_argument("--no-sync", action="store_true", help="reduce gradients in the last micro-batch only")
    add_model_access(parser)
    parser.add_argument("--json", action="store_true", help="bytes and seconds as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the estimate; exit 1 when it does not fit, 2 on a usage error."""
    for name in ("world_size", "tokens", "micro_batches", "nodes"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            return fail(f"--{name.replace('_', '-')} {value}: has to be at least 1", 2)
    try:
        plan = _plan(arguments)
        exact = Exact(arguments.tokens, arguments.micro_batches, arguments.loss, arguments.entropy)
        prediction, time = predict(plan, exact), step_time(plan, exact)
    except (PlanError, MachineError) as error:
        return fail(str(error), 2)
    except OSError as error:
        return fail(reason(error), 2)
    except (ModelError, PredictionError) as error:
        return fail(str(error))
    if arguments.json:
        json.dump(to_json(prediction, time), sys.stdout)
        print()
    else:
        print(estimate_text(prediction, time))
    return 1 if prediction.fits is False else 0


def _plan(arguments: argparse.Namespace) -> Plan:
    if bool(arguments.model) == bool(arguments.target):
        raise PlanError("estimate either a Plan (file or folder) or --model MODEL")
    plan = _plan_of_model(arguments) if arguments.model else _read(arguments.target)
    machine = _machine(arguments, plan.machine)
    plan = dataclasses.replace(plan, machine=machine)
    for edit in [*_shortcuts(arguments), *arguments.edits]:
        field, equals, text = edit.partition("=")
        if not equals:
            raise PlanError(f"--set {edit}: write FIELD=VALUE, as in --set actor.reduce_dtype=fp32")
        plan = plan.replace(field, parse_value(field, text))
    return plan


def _read(target: Path) -> Plan:
    return load_plan(target / FILE_NAME if target.is_dir() else target)


def _plan_of_model(arguments: argparse.Namespace) -> Plan:
    from wizard.model.resolve import resolve_model

    architecture = resolve_model(
        arguments.model,
        python=arguments.python,
        revision=arguments.revision,
        trust_remote_code=arguments.trust_remote_code,
    )
    return Plan(
        target=Target(python=arguments.python),
        model=Model(id=arguments.model, revision=arguments.revision, trust_remote_code=arguments.trust_remote_code),
        architecture=architecture,
    )


def _machine(arguments: argparse.Namespace, planned: Machine) -> Machine:
    machine = parse_machine(arguments.gpus, arguments.nodes) if arguments.gpus else planned
    ranks = arguments.world_size
    if ranks is None or ranks == machine.world_size:
        return machine
    a_node = machine.gpus_per_node or GPUS_A_NODE
    nodes, rest = divmod(ranks, a_node)
    if ranks < a_node or rest:
        return dataclasses.replace(machine, nodes=1, gpus_per_node=ranks)
    return dataclasses.replace(machine, nodes=nodes, gpus_per_node=a_node)


def _shortcuts(arguments: argparse.Namespace) -> list[str]:
    edits = [f"actor.strategy={arguments.strategy}"] if arguments.strategy else []
    if arguments.no_gradient_checkpointing:
        edits.append("model.gradient_checkpointing=false")
    if arguments.no_sync:
        edits.append("actor.no_sync=true")
    return edits


def to_json(prediction: Prediction, time: StepTime) -> dict[str, Any]:
    """Return the estimate as plain data."""
    return {
        "phases": {
            phase.name: {
                "peak_allocated_bytes": phase.peak_allocated_bytes,
                "peak_reserved_bytes": phase.peak_reserved_bytes,
                "needed_bytes": phase.needed_bytes,
                "breakdown": phase.breakdown,
                "at": phase.at,
            }
            for phase in prediction.phases
        },
        "groups": [
            {
                "roles": group.group.roles,
                "nodes": group.group.nodes,
                "gpus_per_node": group.group.gpus_per_node,
                "phases": [phase.name for phase in group.phases],
                "needed_bytes": group.peak.needed_bytes if group.peak else None,
                "fits": group.fits(prediction.gpu_memory_bytes),
            }
            for group in prediction.groups
        ],
        "gpu_memory_bytes": prediction.gpu_memory_bytes,
        "host_bytes_per_node": prediction.host_bytes_per_node,
        "host_breakdown": prediction.host_breakdown,
        "host_memory_bytes": prediction.host_memory_bytes,
        "fits": prediction.fits,
        "largest_token_budget": prediction.largest_token_budget,
        "remedies": [
            {"label": fix.label, "changes": {change.field: change.value for change in fix.changes}}
            for fix in prediction.remedies
        ],
        "step_time": dataclasses.asdict(time),
    }
