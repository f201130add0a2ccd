"""The Plan on disk: `verl-wizard.yaml`."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import msgspec
import yaml

from wizard import __version__
from wizard.plan import Plan, PlanError
from wizard.text import printable
from wizard.verl.reader import ReadError, read_file

FILE_NAME = "verl-wizard.yaml"


class _Dumper(yaml.SafeDumper):
    """Quotes the one character (next line, U+0085) that a YAML reader would turn into a space."""


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, '"' if "\x85" in data else None)


_Dumper.add_representer(str, _text)


def plan_to_yaml(plan: Plan) -> str:
    """Return the Plan as YAML; the same Plan gives the same bytes."""
    version = printable(plan.target.verl_version)
    head = f"# verl-wizard {__version__} Plan for verl {version}. Open: verl-wizard {FILE_NAME}\n"
    return head + yaml.dump(msgspec.to_builtins(plan), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def plan_from_mapping(data: Any) -> Plan:
    """Return the Plan that a parsed YAML mapping holds.

    Raises:
        PlanError: a field is unknown or has a value it cannot have.
    """
    unknown = _unknown(data, Plan, "")
    if unknown:
        raise PlanError(f"not a Plan: it has no field {unknown}")
    try:
        return msgspec.convert(data, Plan)
    except msgspec.ValidationError as error:
        raise PlanError(f"not a Plan: {error}") from error


def _unknown(data: Any, owner: Any, path: str) -> str:
    """Return the first key that is no field, which msgspec would pass over; empty when all are known."""
    if not isinstance(data, dict) or not dataclasses.is_dataclass(owner):
        return ""
    hints = typing.get_type_hints(owner)
    for key, value in data.items():
        name = f"{path}{key}"
        if key not in hints:
            return name
        options = typing.get_args(hints[key]) or (hints[key],)
        found = next((found for option in options if (found := _unknown(value, option, f"{name}."))), "")
        if found:
            return found
    return ""


def load_plan(path: Path) -> Plan:
    """Read a Plan.

    Raises:
        PlanError: not YAML, or not a Plan; the message names the file.
        OSError: the file cannot be read.
    """
    try:
        # With the limits of every foreign file: it may have been edited, or be something else altogether.
        return plan_from_mapping(read_file(path).value)
    except ReadError as error:
        raise PlanError(str(error)) from error
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
