import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wizard.findings import Change, Fix
from wizard.fixing import apply_fix
from wizard.plan import Plan, PlanError, field_specs, parse_value
from wizard.plan_file import FILE_NAME, load_plan, plan_to_yaml

SPECS = field_specs()


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans with a few fields changed to values of their type."""
    plan = Plan()
    for path in draw(st.lists(st.sampled_from(sorted(SPECS)), max_size=6, unique=True)):
        spec = SPECS[path]
        if spec.choices:
            value: Any = draw(st.sampled_from(spec.choices))
        elif spec.type is bool:
            value = draw(st.booleans())
        elif spec.type is int:
            value = draw(st.integers(int(spec.minimum or 0), 10**6))
        elif spec.type is float:
            value = draw(st.floats(0, 1e6, allow_nan=False))
        elif spec.type is str:
            value = draw(st.text(max_size=30))
        else:
            continue
        plan = plan.replace(path, value)
    return plan


@given(plan=plans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_plan_survives_the_disk(plan: Plan, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("plan") / FILE_NAME
    path.write_text(plan_to_yaml(plan), encoding="utf-8")
    assert load_plan(path) == plan


def test_every_field_has_help_and_a_default_of_its_type():
    for path, spec in SPECS.items():
        section = path.split(".")[0]
        if section in ("machine", "architecture", "critic_architecture"):
            continue
        assert spec.help.endswith("."), path
        assert Plan().get(path) == spec.default


def test_ref_and_critic_follow_the_actor_until_they_are_edited():
    plan = Plan().replace("actor.reduce_dtype", "bf16")
    assert plan.get("ref.reduce_dtype") == plan.get("critic.reduce_dtype") == "bf16"
    plan = plan.replace("ref.param_offload", True).replace("actor.reduce_dtype", "fp32")
    assert (plan.get("ref.reduce_dtype"), plan.get("critic.reduce_dtype")) == ("bf16", "fp32")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("actor.stratgy", "fsdp", "actor.strategy"),
        ("actor.strategy", "fsdp3", "actor.strategy"),
        ("batches.train_batch_size", 0, "smallest"),
        ("batches.train_batch_size", "many", "batches.train_batch_size"),
        ("actor", 1, "actor"),
    ],
)
def test_what_cannot_be_is_refused_with_field_and_value(path: str, value: object, said: str):
    with pytest.raises(PlanError, match=said):
        Plan().replace(path, value)


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("actor.wrap_classes", "A, B", ("A", "B")),
        ("actor.wrap_classes", "[]", ()),
        ("actor.param_offload", "True", True),
        ("batches.learning_rate", "1e-6", 1e-6),
        ("actor.fsdp_size", "-1", -1),
        ("model.id", "a/b", "a/b"),
    ],
)
def test_typed_text_becomes_the_fields_value(path: str, text: str, value: object):
    assert parse_value(path, text) == value


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "a: b", "target: 3", "{target: {python: [1]}}", "\t- :", "\x00", "target: {nope: 1}", "&a [*a]"],
)
def test_a_file_that_is_no_plan_is_said_to_be_none(text: str, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("bad") / "x.yaml"
    path.write_text(text)
    with pytest.raises(PlanError, match=r"x\.yaml"):
        load_plan(path)


def test_a_plan_file_executes_nothing(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("evil")
    path = folder / "x.yaml"
    path.write_text(f"target: !!python/object/apply:os.mkdir ['{folder / 'owned'}']")
    with pytest.raises(PlanError):
        load_plan(path)
    assert not (folder / "owned").exists()


def test_a_fix_may_name_fields_and_verl_keys():
    fix = Fix("both", (Change("actor.wrap_classes", ["A"]), Change("critic.enable", True)))
    plan = apply_fix(Plan(), fix)
    assert plan.actor.wrap_classes == ("A",)
    assert plan.extra_overrides == (("critic.enable", True),)
    assert apply_fix(plan, Fix("again", (Change("critic.enable", False),))).extra_overrides == (
        ("critic.enable", False),
    )
    with pytest.raises(PlanError):
        apply_fix(dataclasses.replace(plan), Fix("wrong", (Change("nonsense", 1),)))
