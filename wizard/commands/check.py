"""`verl-wizard check FILE` or `verl-wizard check -- key=value …`."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from wizard.commands.options import add_model_access, fail, verl_version
from wizard.files import FileExists, write_atomic
from wizard.findings import Finding, Severity
from wizard.findings_text import finding_data, finding_lines
from wizard.plan import PlanError
from wizard.rules import Facts, check_config
from wizard.rules.placement import check_placement
from wizard.scrub import hide_secrets
from wizard.text import printable_lines
from wizard.verl.importer import Imported, import_argv, import_file
from wizard.verl.pools import launched_ranks
from wizard.verl.reader import ReadError
from wizard.verl.schema import SchemaError

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


class FactsError(ValueError):
    """A fact given on the command line cannot be used; the message is for the person."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="YAML, .hydra/*.yaml, Plan, or a folder")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="after --: what verl's main would be given")
    add_facts(parser)
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    parser.add_argument("--fix", action="store_true", help="write a corrected copy and show what changed")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where --fix writes (default: FILE with .fixed)")
    parser.add_argument(
        "--overwrite", action="store_true", help="let --fix replace a file that is there; it stays as NAME.bak"
    )


def add_facts(parser: argparse.ArgumentParser) -> None:
    """Declare what a configuration does not say itself."""
    parser.add_argument("--gpus", metavar="GPUS", help="GPUs of one node, as in 8x80GB or 8xH100,ram=1TB,cpus=96")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of that kind")
    parser.add_argument("--model", metavar="MODEL", help="model whose heads and classes are checked")
    parser.add_argument("--verl-version", metavar="V", help="verl release (default: that of --python, else guessed)")
    add_model_access(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check; exit 0 without error-level findings, 1 with, 2 when the input cannot be read."""
    # argparse gives the first word after `--` to FILE: an override is told by its equals sign.
    file: Path | None = arguments.file
    overrides: list[str] = arguments.overrides
    if file is not None and "=" in str(file) and not file.exists():
        file, overrides = None, [str(file), *overrides]
    if file is None and not overrides:
        return fail("check: give a file, or overrides after --", 2)
    try:
        version = verl_version(arguments, ask_this_one=False) or None
        found = import_file(file, version) if file else import_argv(overrides, version)
        facts = facts_of(arguments, found)
    except OSError as error:
        return fail(f"{file}: {error.strerror}", 2)
    except (ReadError, SchemaError, PlanError, FactsError) as error:
        return fail(str(error), 2)
    return report(found, facts, arguments)


def report(found: Imported, facts: Facts, arguments: argparse.Namespace) -> int:
    """Print the findings, and the corrected copy with `--fix`; returns the exit code.

    What a program reads has stdout to itself: the JSON, else the corrected overrides of an argument list.
    """
    findings = sorted(_findings(found, facts), key=lambda finding: _ORDER.index(finding.severity))
    corrected_argv = arguments.fix and found.kind == "argv"
    if arguments.json:
        json.dump({"findings": [finding_data(finding) for finding in findings]}, sys.stdout, allow_nan=False)
        print()
    else:
        print(_text(findings, found), file=sys.stderr if corrected_argv else sys.stdout)
    if arguments.fix:
        return _fix(found, facts, arguments)
    return 1 if any(finding.severity is Severity.ERROR for finding in findings) else 0


def _findings(found: Imported, facts: Facts) -> tuple[Finding, ...]:
    return (*check_config(found.config, facts), *_of_groups(found))


def _of_groups(found: Imported) -> tuple[Finding, ...]:
    """Return the findings of a Plan's groups: they are in no verl key, so that no rule of a configuration sees them."""
    return tuple(check_placement(found.plan)) if found.kind == "plan" and found.plan else ()


def facts_of(arguments: argparse.Namespace, found: Imported) -> Facts:
    """Return what is known beside the configuration: from the command line, else from the Plan.

    Raises:
        FactsError: a machine or model that cannot be used.
    """
    machine = found.plan.machine if found.plan and found.plan.machine.gpus_per_node else None
    architecture = found.plan.architecture if found.plan else None
    if arguments.gpus:
        from wizard.probe.machine import MachineError, parse_machine

        try:
            machine = parse_machine(arguments.gpus, arguments.nodes)
        except MachineError as error:
            raise FactsError(str(error)) from error
    from wizard.model.resolve import known

    model = arguments.model or str(found.config.get("actor_rollout_ref.model.path") or "")
    architecture = architecture or known(model)
    if architecture is None and arguments.model:
        from wizard.model.errors import ModelError
        from wizard.model.resolve import resolve_model

        try:
            architecture = resolve_model(
                model,
                python=arguments.python,
                revision=arguments.revision,
                trust_remote_code=arguments.trust_remote_code,
            )
        except ModelError as error:
            raise FactsError(str(error)) from error
    critic = found.config.get("critic.model.path")
    ranks = launched_ranks(found.plan) if found.kind == "plan" and found.plan else {}
    return Facts(machine, architecture, known(str(critic)) if critic else None, {}, ranks=ranks)


def _text(findings: Sequence[Finding], found: Imported) -> str:
    lines: list[str] = []
    for finding in findings:
        lines += finding_lines(finding, found.config.origin(finding.field))
    counts = [sum(finding.severity is severity for finding in findings) for severity in _ORDER]
    lines.append(f"verl {found.config.version}: {counts[0]} errors, {counts[1]} warnings, {counts[2]} notes")
    return "\n".join(lines)


def _fix(found: Imported, facts: Facts, arguments: argparse.Namespace) -> int:
    from wizard.verl.correct import corrected, diff_of, still_wrong

    result = corrected(found, facts)
    out = sys.stderr if arguments.json else sys.stdout
    if result.document is None:
        # An argument list has no file to keep: the corrected overrides are the output.
        print("\n".join(result.overrides), file=out)
    else:
        target = arguments.out or Path(f"{found.source}.fixed")
        print(printable_lines(hide_secrets(diff_of(found, result, target))), file=out)
        try:
            mode = _mode(found.source)
            write_atomic(target, result.document, overwrite=arguments.overwrite, keep_previous=True, mode=mode)
        except FileExists as error:
            return fail(f"{error} (--overwrite)", 2)
        except OSError as error:
            return fail(f"{target}: cannot be written: {error.strerror}", 2)
        print(f"verl-wizard: written {target}", file=sys.stderr)
    # Groups are the person's to change: the corrected copy has them as they were.
    wrong_groups = any(finding.severity is Severity.ERROR for finding in _of_groups(found))
    return 1 if wrong_groups or still_wrong(result, facts) else 0


def _mode(source: str) -> int:
    """Return the permissions of what is corrected: the copy is as private as the original."""
    return stat.S_IMODE(os.stat(source).st_mode)
