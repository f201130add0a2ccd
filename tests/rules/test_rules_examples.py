"""verl's own launch scripts, and the faults people reported in public."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rule_bench import config_of, facts, fixed

from wizard.findings import Severity
from wizard.rules import Facts, check_config
from wizard.verl.config import Assignment, VerlConfig
from wizard.verl.overrides import parse_override
from wizard.verl.schema import load_schema

CASES = Path(__file__).parents[1] / "cases"
EXAMPLES = json.loads((CASES / "verl_example_overrides.json").read_text(encoding="utf-8"))
FAULTS = json.loads((CASES / "config_faults.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["script"])
def test_launch_script(example: dict[str, Any]) -> None:
    said = [(parse_override(text), text) for text in example["overrides"]]
    entries = [Assignment(o.key, o.value, o.mode, text) for o, text in said]
    config = VerlConfig(load_schema("0.9.1"), entries)
    errors = {(f.id, f.stage.value) for f in check_config(config, Facts()) if f.severity is Severity.ERROR}
    expected = set() if example["verl_0_9_1"] == "accepts" else {("hydra-refuses", "composition")}
    assert errors == expected


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault['row']} {fault['rule']}")
def test_reported_fault(fault: dict[str, Any]) -> None:
    """`row` is the number in the collection of reported faults, `url` its thread."""
    config, around = (
        config_of(fault["config"], without=tuple(fault.get("without", ()))),
        facts(**fault.get("facts", {})),
    )
    found = [f for f in check_config(config, around) if f.id == fault["rule"]]
    assert [f.severity.value for f in found][:1] == [fault["severity"]]
    assert found[0].field == fault["field"]
    if "fix" not in fault:
        return
    changes = {change.field: change.value for change in found[0].fixes[0].changes}
    assert changes.items() >= fault["fix"].items()
    mended = check_config(fixed(config, found[0], found[0].fixes[0]), around)
    assert [f for f in mended if f.id == fault["rule"] and f.field == fault["field"]] == []
    # A fix is of one role; what the others have of the same fault is found beside it.
    assert [f for f in mended if f.severity is Severity.ERROR and f.id != fault["rule"]] == []
