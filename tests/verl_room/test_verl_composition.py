"""Our composition against Hydra's and OmegaConf's own, over verl 0.9.1's configuration."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from wizard.verl.config import InterpolationError, VerlConfig
from wizard.verl.importer import import_argv
from wizard.verl.schema import load_schema

pytestmark = pytest.mark.verl

CASES = Path(__file__).parents[1] / "cases" / "verl_example_overrides.json"
EXAMPLES = json.loads(CASES.read_text(encoding="utf-8"))
SCHEMA = load_schema("0.9.1")
REFUSED = "refused"


def hydras(hydra_compose: Any, overrides: list[str]) -> Any:
    try:
        return OmegaConf.to_container(hydra_compose(overrides), resolve=False)
    except (HydraException, OmegaConfBaseException) as error:
        return f"{REFUSED}: {str(error).splitlines()[0]}"


def ours(overrides: list[str]) -> Any:
    config = import_argv(overrides, "0.9.1").config
    return f"{REFUSED}: {config.faults[0].message}" if config.faults else config.to_container(resolve=False)


def agree(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str) and one.startswith(REFUSED):
        return other.startswith(REFUSED)
    return same(one, other)


def same(one: Any, other: Any) -> bool:
    """Equal with types: 1 is not True, and NaN is NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and one == other


def resolved(config: Any) -> dict[str, Any]:
    """Return every leaf with OmegaConf's value of it; an interpolation that fails is named as such."""
    found: dict[str, Any] = {}

    def visit(node: Any, prefix: str) -> None:
        for name in node:
            key = f"{prefix}{name}"
            if OmegaConf.is_missing(node, name):
                found[key] = "???"
                continue
            try:
                value = node[name]
            except OmegaConfBaseException:
                found[key] = InterpolationError
                continue
            if OmegaConf.is_dict(value) and value:
                visit(value, f"{key}.")
            else:
                found[key] = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value

    visit(config, "")
    return found


def our_resolved(config: VerlConfig, keys: Any) -> dict[str, Any]:
    absent = object()
    found = {}
    for key in keys:
        value = config.get(key, absent)
        if value is absent:
            value = "???" if config.raw(key) == "???" else InterpolationError
        found[key] = value
    return found


def test_defaults(hydra_compose: Any):
    composed = hydra_compose([])
    config = VerlConfig(SCHEMA)
    assert same(config.to_container(resolve=False), OmegaConf.to_container(composed, resolve=False))
    theirs = resolved(composed)
    assert our_resolved(config, theirs) == theirs


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["script"])
def test_launch_script(example: dict[str, Any], hydra_compose: Any):
    said = example["overrides"]
    theirs = hydras(hydra_compose, said)
    assert agree(ours(said), theirs), (ours(said), theirs)
    if not isinstance(theirs, str):
        values = resolved(hydra_compose(said))
        found = our_resolved(import_argv(said, "0.9.1").config, values)
        assert {k: v for k, v in found.items() if not same(v, values[k])} == {}


LEAVES = sorted(key for key in SCHEMA.keys if not key.startswith("hydra."))
BLOCKS = sorted({key.rpartition(".")[0] for key in LEAVES if "." in key})
VALUES = st.sampled_from(
    ("1", "0", "2.5", "true", "null", "word", "[1,a]", "[]", "{}", "{a:1}", "{a:{b:2}}", "'${trainer.nnodes}'", "???",
     "'${oc.select:data.nothing,7}'", "'${.name}'", "'${..name}'", "'x${trainer.nnodes}y'", "'${nowhere.at.all}'")
)  # fmt: skip
TYPOS = st.sampled_from(("xyz", "lr_", "fsdp", "path", "Name", "_target_"))
KEYS = st.one_of(
    st.sampled_from(LEAVES),
    st.sampled_from(BLOCKS),
    st.tuples(st.sampled_from(BLOCKS), TYPOS).map(".".join),
    st.tuples(st.sampled_from(LEAVES), TYPOS).map(".".join),
    TYPOS,
)
OVERRIDES = st.one_of(
    st.tuples(st.sampled_from(("", "", "+", "++")), KEYS, VALUES).map(lambda parts: f"{parts[0]}{parts[1]}={parts[2]}"),
    st.tuples(KEYS, st.sampled_from(("", "", "=1", "=null"))).map(lambda parts: f"~{parts[0]}{parts[1]}"),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.lists(OVERRIDES, min_size=1, max_size=4))
def test_random_overrides(said: list[str], hydra_compose: Any):
    theirs = hydras(hydra_compose, said)
    assert agree(ours(said), theirs), (said, ours(said), theirs)
    if not isinstance(theirs, str):
        values = resolved(hydra_compose(said))
        found = our_resolved(import_argv(said, "0.9.1").config, values)
        assert {key: (value, values[key]) for key, value in found.items() if not same(value, values[key])} == {}
