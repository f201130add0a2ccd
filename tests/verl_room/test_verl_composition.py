"""Our composition against Hydra's and OmegaConf's own, over verl 0.9.1's configuration."""

from __future__ import annotations

import copy
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import HealthCheck, Phase, given, settings
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
    except (HydraException, OmegaConfBaseException, TypeError, ValueError) as error:  # Hydra itself trips over lists
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
            if OmegaConf.is_dict(value) and value and not any("." in str(child) for child in value):
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
    assert agree(ours(said), theirs), first_difference(ours(said), theirs)
    if not isinstance(theirs, str):
        values = resolved(hydra_compose(said))
        found = our_resolved(import_argv(said, "0.9.1").config, values)
        assert {k: v for k, v in found.items() if not same(v, values[k])} == {}


LEAVES = sorted(key for key in SCHEMA.keys if not key.startswith("hydra."))
BLOCKS = sorted({key.rpartition(".")[0] for key in LEAVES if "." in key} - SCHEMA.groups)
VALUES = st.sampled_from(
    ("1", "0", "2.5", "true", "null", "word", "[1,a]", "[]", "{}", "{a:1}", "{a:{b:2}}", "'${trainer.nnodes}'", "???",
     "'${oc.select:data.nothing,7}'", "'${.name}'", "'${..name}'", "'x${trainer.nnodes}y'", "'${nowhere.at.all}'")
)  # fmt: skip
FOLLOWERS = [key for key in LEAVES if isinstance(SCHEMA.node(key), str) and "${" in SCHEMA.node(key)]
LIST_ITEMS = st.sampled_from(
    [
        f"{key}.{index}"
        for key in LEAVES
        if SCHEMA.node(key) and isinstance(SCHEMA.node(key), list)
        for index in ("0", "1", "7", "x")
    ]
)
TYPOS = st.sampled_from(("xyz", "lr_", "fsdp", "path", "Name", "_target_"))
KEYS = st.one_of(
    st.sampled_from(LEAVES),
    LIST_ITEMS,
    st.sampled_from(BLOCKS),
    st.tuples(st.sampled_from(BLOCKS), TYPOS).map(".".join),
    st.tuples(st.sampled_from(LEAVES), TYPOS).map(".".join),
    TYPOS,
)
OVERRIDES = st.one_of(
    st.tuples(st.sampled_from(("", "", "+", "++")), KEYS, VALUES).map(lambda parts: f"{parts[0]}{parts[1]}={parts[2]}"),
    st.tuples(KEYS, st.sampled_from(("", "", "=1", "=null"))).map(lambda parts: f"~{parts[0]}{parts[1]}"),
)


@pytest.fixture(scope="module")
def apply_by_hydra(verl_config_folder: Path) -> Any:
    """Hydra's own application of overrides to the composed defaults, without composing these each time."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(verl_config_folder), version_base=None):
        base = compose("ppo_trainer")
    parser = OverridesParser.create()

    def apply(overrides: list[str]) -> Any:
        config = copy.deepcopy(base)
        OmegaConf.set_struct(config, True)
        ConfigLoaderImpl._apply_overrides_to_config([parser.parse_override(text) for text in overrides], config)
        return config

    return apply


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)  # fmt: skip
@given(said=st.lists(OVERRIDES, min_size=1, max_size=4), chance=st.randoms(use_true_random=False))
def test_random_overrides(said: list[str], chance: random.Random, apply_by_hydra: Any):
    theirs = hydras(apply_by_hydra, said)
    found = ours(said)
    assert agree(found, theirs), (said, first_difference(found, theirs))
    if not isinstance(theirs, str):
        config, composed = import_argv(said, "0.9.1").config, apply_by_hydra(said)
        followers = chance.sample(FOLLOWERS, 12)
        for key in [*(k for k in config.given if not isinstance(config.given[k], (dict, list))), *followers]:
            assert same(config.get(key, InterpolationError), selected(composed, key)), (said, key)


def selected(config: Any, key: str) -> Any:
    """Return OmegaConf's value of a leaf, `InterpolationError` where there is none."""
    try:
        node = OmegaConf.select(config, key, default=InterpolationError)
    except OmegaConfBaseException:
        return InterpolationError
    return OmegaConf.to_container(node) if OmegaConf.is_config(node) else node


def first_difference(one: Any, other: Any, at: str = "") -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}, key=str):
            if not same(one.get(key, "absent"), other.get(key, "absent")):
                return first_difference(one.get(key, "absent"), other.get(key, "absent"), f"{at}.{key}")
    return at, str(one)[:200], str(other)[:200]
