"""`verl-wizard generate --model MODEL --gpus 8x80GB --out DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from wizard.commands.options import add_model_access, fail, verl_version
from wizard.files import FileExists
from wizard.findings import Severity
from wizard.findings_text import finding_lines
from wizard.memory.finding import memory_findings
from wizard.model.errors import ModelError
from wizard.model.tiny import TINY_ID, ensure_tiny
from wizard.plan import AlgorithmName, Model, PlanError, Target, field_specs
from wizard.probe.machine import FORM, MachineError, parse_machine, probe_machine
from wizard.rules import check_plan
from wizard.starter import starter_plan
from wizard.verl.schema import SchemaError, load_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--model", required=True, metavar="MODEL", help="folder, Hugging Face id, preset, or `tiny`")
    parser.add_argument("--gpus", metavar="GPUS", help=f"GPUs of one node: {FORM} (default: those of this machine)")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of that kind (default: 1)")
    parser.add_argument("--algorithm", choices=field_specs()["algorithm.name"].choices, default="grpo")
    parser.add_argument(
        "--verl-version", default="", metavar="V", help="verl release the files are for (default: the installed one)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="edits", help="change a field of the Plan"
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for the files")
    parser.add_argument("--overwrite", action="store_true", help="replace files there; old ones stay as NAME.bak")
    add_model_access(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the files; exit 1 with the findings on stderr, and nothing written, when verl would fail or lack memory."""
    edits = [tuple(edit.split("=", 1)) for edit in arguments.edits]
    wrong = next((edit for edit in edits if len(edit) != 2), None)
    if wrong is not None:
        return fail(f"--set {wrong[0]}: write FIELD=VALUE, as in --set actor.reduce_dtype=fp32", 2)
    if arguments.nodes < 1:
        return fail(f"--nodes {arguments.nodes}: at least one node has to train", 2)
    algorithm: AlgorithmName = arguments.algorithm
    version = verl_version(arguments, ask_this_one=True)
    try:
        machine = parse_machine(arguments.gpus, arguments.nodes) if arguments.gpus else probe_machine()
        plan = starter_plan(
            arguments.model,
            machine,
            algorithm,
            edits,
            target=Target(python=arguments.python, verl_version=version or Target().verl_version),
            settings=Model(revision=arguments.revision, trust_remote_code=arguments.trust_remote_code),
        )
        load_schema(plan.target.verl_version)
    except (MachineError, PlanError, SchemaError) as error:
        return fail(str(error), 2)
    except ModelError as error:
        return fail(str(error))
    findings = (*check_plan(plan), *memory_findings(plan))
    for finding in findings:
        print("\n".join(finding_lines(finding)), file=sys.stderr)
    if any(finding.severity is Severity.ERROR for finding in findings):
        return fail("nothing was written: verl would fail. Correct the fields above with --set.")
    from generators import render, write

    try:
        if plan.model.id == TINY_ID:
            ensure_tiny(plan.target.python)
        written = write(render(plan), arguments.out, overwrite=arguments.overwrite)
    except FileExists as error:
        return fail(f"{error} (--overwrite)")
    except ModelError as error:
        return fail(str(error))
    except OSError as error:
        return fail(f"{arguments.out}: cannot be written: {error.strerror}")
    print("\n".join(str(path) for path in written))
    return 0
