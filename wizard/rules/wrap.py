"""Wrap policies: which classes become FSDP units."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from wizard.facts import Architecture
from wizard.findings import Change, Fix, Severity, Stage
from wizard.model.selection import recommended
from wizard.model.units import NestedUnits, NoUnits, class_names, fsdp_units
from wizard.plan import Fsdp
from wizard.rules.case import Case, Engine
from wizard.rules.registry import Found, rule, set_key

_POLICY = "verl 0.9.1 utils/fsdp_utils.py:80-165 (get_fsdp_wrap_policy)"
_APPLY = "verl 0.9.1 utils/fsdp_utils.py:549-600 (apply_fsdp2)"
_ABSENT: Any = object()


def _classes_key(case: Case, role: Engine) -> str:
    return case.engine_key(role, "wrap_policy.transformer_layer_cls_to_wrap")


def _size_key(case: Case, role: Engine) -> str:
    return case.engine_key(role, "wrap_policy.min_num_params")


def _given(case: Case, role: Engine) -> Any:
    """Return the classes as given; a marker where the key is absent, which leaves the choice to the model."""
    key = _classes_key(case, role)
    return case.get(key) if key in case.config else _ABSENT


def _sized(case: Case, role: Engine) -> bool:
    return case.number(_size_key(case, role)) > 0


def _disabled(case: Case, role: Engine) -> bool:
    return case.flag(case.engine_key(role, "wrap_policy.disable"))


def _unchecked(case: Case, role: Engine) -> bool:
    """Whether verl passes over the class names: `get_fsdp_wrap_policy` looks at them last."""
    return _sized(case, role) or _disabled(case, role)


def _own_choice(case: Case, role: Engine) -> tuple[Fix, ...]:
    """Offer the classes the structural detector found."""
    architecture = case.architecture(role)
    found = [entry.name for entry in architecture.layer_classes if entry.detected] if architecture else []
    return (set_key(_classes_key(case, role), found, f"wrap {', '.join(found)}"),) if found else ()


def _corrected(case: Case, role: Engine, names: list[str], architecture: Architecture) -> tuple[Fix, ...]:
    """Offer the nearest class of each absent name, letter case first."""
    present = sorted(class_names(architecture))
    by_lower = {name.lower(): name for name in present}
    better: list[str] = []
    for name in names:
        near = difflib.get_close_matches(name, present, n=1, cutoff=0.75)
        match = name if name in present else by_lower.get(name.lower()) or (near[0] if near else None)
        if match and match not in better:
            better.append(match)
    own = _own_choice(case, role)
    blocks = {entry.name for entry in architecture.layer_classes if entry.kind == "block"}
    if better and all(name in blocks for name in better):
        nearest = set_key(_classes_key(case, role), better, f"wrap {', '.join(better)}")
        return (nearest, *(fix for fix in own if fix != nearest))
    return own


@rule(
    "wrap-class-missing", "the wrap classes are classes of the model", Severity.ERROR, Stage.WORKERS,
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",), f"{_POLICY}; {_APPLY}",
)  # fmt: skip
def wrap_class_missing(case: Case) -> Iterator[Found]:
    """Letter case counts. When no name fits, workers stop while they build the policy; when some do, the others are
    left out with a warning (before 0.8 any absent name stops the run). With a size given as well, fsdp2 does not
    even look and wraps nothing but the embeddings."""
    for role in case.engines:
        given, architecture = _given(case, role), case.architecture(role)
        if not isinstance(given, list) or not given or architecture is None:
            continue
        present = class_names(architecture)
        absent = [str(name) for name in given if name not in present]
        if not absent:
            continue
        key, fixes = _classes_key(case, role), _corrected(case, role, [str(name) for name in given], architecture)
        names, model = ", ".join(absent), architecture.class_name
        if _unchecked(case, role):
            if case.strategy(role) == "fsdp2" and len(absent) == len(given):
                which = "min_num_params" if _sized(case, role) else "disable"
                text = f"{names} is no class of {model}; with {which} set verl does not check and wraps no layer."
                yield Found(key, text, fixes, stage=Stage.SILENT)
        elif len(absent) == len(given):
            yield Found(key, f"{names} is no class of {model}: workers stop.", fixes)
        elif case.config.schema.minor < (0, 8):
            yield Found(key, f"{names} is no class of {model}: this verl stops on any absent name.", fixes)
        else:
            yield Found(key, f"{names} is no class of {model} and is left out.", fixes, Severity.WARNING, Stage.SILENT)


@rule(
    "wrap-class-form", "the wrap classes are a list", Severity.ERROR, Stage.WORKERS,
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",), _POLICY,
)  # fmt: skip
def wrap_class_form(case: Case) -> Iterator[Found]:
    """A plain text is read letter by letter; an empty list wraps nothing and stops; null makes the whole model one
    unit under fsdp, without a word, and stops fsdp2."""
    for role in case.engines:
        given, key = _given(case, role), _classes_key(case, role)
        if given is _ABSENT or _unchecked(case, role):
            continue
        if isinstance(given, str):
            names = [name.strip() for name in given.strip("[]").split(",") if name.strip()]
            yield Found(
                key, "a plain text is read letter by letter, and workers stop.", (set_key(key, names, "as a list"),)
            )
        elif given == []:
            yield Found(key, "an empty list names no class: workers stop.", _own_choice(case, role))
        elif given is None and key in case.config.given:
            if case.strategy(role) == "fsdp2":
                yield Found(key, "null stops fsdp2 with a TypeError.", _own_choice(case, role))
            else:
                text = "null makes the whole model one unit: all its parameters are gathered at once."
                yield Found(key, text, _own_choice(case, role), stage=Stage.SILENT)


@rule(
    "wrap-no-default", "a model without `_no_split_modules` needs wrap classes", Severity.ERROR, Stage.WORKERS,
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",), f"{_POLICY}; {_APPLY}",
)  # fmt: skip
def wrap_no_default(case: Case) -> Iterator[Found]:
    """verl falls back on the model's own list. Where there is none, fsdp2 stops, and fsdp makes the whole model one
    unit without saying so."""
    for role in case.engines:
        architecture = case.architecture(role)
        if (
            _given(case, role) is not _ABSENT
            or _unchecked(case, role)
            or architecture is None
            or architecture.no_split_modules
        ):
            continue
        key, model = _classes_key(case, role), architecture.class_name
        fixes = _own_choice(case, role)
        if case.strategy(role) == "fsdp2" or architecture.no_split_modules is not None:
            yield Found(key, f"{model} names no layer classes of its own: workers stop.", fixes)
        else:
            text = f"{model} names no layer classes of its own: the whole model becomes one unit."
            yield Found(key, text, fixes, stage=Stage.SILENT)


@rule(
    "wrap-nested", "no unit lies inside another under fsdp2", Severity.ERROR, Stage.WORKERS,
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",),
    f"{_APPLY}; torch 2.13 distributed/fsdp/_fully_shard",
)  # fmt: skip
def wrap_nested(case: Case) -> Iterator[Found]:
    """verl wraps outer modules first, and torch cannot shard a sharded parameter again: `Cannot concatenate
    overlapping meshes`. Two dozen models of transformers 5.10 bring it on themselves, since their `_no_split_modules`
    names both a layer and a part of it, or a part that holds an embedding (llava, aria, mamba, zamba)."""
    for role in case.engines:
        given, architecture = _given(case, role), case.architecture(role)
        if architecture is None or case.strategy(role) != "fsdp2":
            continue
        names = tuple(map(str, given)) if isinstance(given, list) else ()
        try:
            fsdp_units(architecture, Fsdp(strategy="fsdp2", wrap_classes=names))
        except NestedUnits as error:
            key = _classes_key(case, role)
            yield Found(key, str(error), _unnested(case, role, architecture))
        except NoUnits:
            continue


def _unnested(case: Case, role: Engine, architecture: Architecture) -> tuple[Fix, ...]:
    """Offer the blocks that do not lie in one another, if they really do not."""
    names = recommended(architecture)
    try:
        fsdp_units(architecture, Fsdp(strategy="fsdp2", wrap_classes=names))
    except NoUnits:
        return ()
    return (set_key(_classes_key(case, role), list(names), f"wrap {', '.join(names)}"),)


@rule(
    "wrap-size-wins", "min_num_params wins over the classes under fsdp", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params",), _POLICY,
)  # fmt: skip
def wrap_size_wins(case: Case) -> Iterator[Found]:
    """Units then follow sizes, not layers: MLPs, embeddings or single Linears, and the classes are not even checked."""
    for role in case.engines:
        if case.strategy(role) == "fsdp" and _sized(case, role) and isinstance(_given(case, role), list):
            key = _size_key(case, role)
            yield Found(key, f"the {role}'s wrap classes are ignored: units follow their size.", (set_key(key, 0),))


@rule(
    "wrap-size-ignored", "min_num_params is ignored by fsdp2", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params",), _APPLY,
)  # fmt: skip
def wrap_size_ignored(case: Case) -> Iterator[Found]:
    """fsdp2 wraps by class name only; a size given also switches verl's check of the names off."""
    for role in case.engines:
        if case.strategy(role) == "fsdp2" and _sized(case, role):
            key = _size_key(case, role)
            yield Found(key, "fsdp2 does not read it, and verl no longer checks the class names.", (set_key(key, 0),))


@rule(
    "wrap-embedding", "embeddings and heads are not wrap classes", Severity.WARNING, Stage.FIRST_STEP,
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",),
    f"{_APPLY}; huggingface/transformers issue 39186",
)  # fmt: skip
def wrap_embedding(case: Case) -> Iterator[Found]:
    """An embedding or head in a unit of its own is sharded when it is used outside its forward (tied heads)."""
    for role in case.engines:
        given, architecture = _given(case, role), case.architecture(role)
        if not isinstance(given, list) or architecture is None:
            continue
        kinds = {entry.name: entry.kind for entry in architecture.layer_classes}
        wrong = [name for name in given if kinds.get(name) in ("embedding", "head")]
        rest = [name for name in given if name not in wrong]
        if wrong:
            key = _classes_key(case, role)
            fixes = (set_key(key, rest, f"wrap {', '.join(rest)}"),) if rest else _own_choice(case, role)
            tied = architecture.tied_embeddings
            text = f"{', '.join(wrong)} becomes a unit of its own" + (", although it is tied." if tied else ".")
            yield Found(key, text, fixes, Severity.ERROR if tied else None)


@rule(
    "wrap-expert", "experts are not wrap classes", Severity.ERROR, Stage.FIRST_STEP,
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",),
    "torch 2.13 FSDP (one collective a unit); THUDM/slime pull 1010",
)  # fmt: skip
def wrap_expert(case: Case) -> Iterator[Found]:
    """Ranks gather a unit when they use it. Tokens choose experts, so that some ranks gather one that others do not:
    the collectives no longer match, and the run hangs."""
    for role in case.engines:
        given, architecture = _given(case, role), case.architecture(role)
        if not isinstance(given, list) or architecture is None:
            continue
        single = {
            entry.name
            for entry in architecture.layer_classes
            if entry.kind == "expert" and entry.count > architecture.num_layers
        }
        wrong = [name for name in given if name in single]
        if wrong:
            key = _classes_key(case, role)
            yield Found(key, f"{', '.join(wrong)} is used by some ranks only: the run hangs.", _own_choice(case, role))


@rule(
    "wrap-one-unit", "the model becomes several units", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy.disable",), _POLICY,
)  # fmt: skip
def wrap_one_unit(case: Case) -> Iterator[Found]:
    """`wrap_policy.disable` makes the whole model one unit under fsdp, and is ignored by fsdp2."""
    for role in case.engines:
        key = case.engine_key(role, "wrap_policy.disable")
        if case.flag(key):
            if case.strategy(role) == "fsdp":
                text = "the whole model is one unit: all its parameters are gathered at once."
            else:
                text = "fsdp2 does not read it."
            yield Found(key, text, (set_key(key, False),))


@rule(
    "lora-size-wrap", "LoRA with a size policy needs original parameters", Severity.ERROR, Stage.WORKERS,
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params",), _POLICY,
)  # fmt: skip
def lora_size_wrap(case: Case) -> Iterator[Found]:
    """fsdp flattens frozen and trained parameters of one unit together, which it refuses without use_orig_params."""
    if case.strategy("actor") == "fsdp" and case.lora_rank and _sized(case, "actor"):
        original = case.engine_key("actor", "use_orig_params")
        if not case.flag(original):
            key = _size_key(case, "actor")
            fixes = (set_key(key, 0, "wrap by class"), Fix("original parameters", (Change(original, True),)))
            yield Found(key, "with LoRA, units by size mix frozen and trained parameters: fsdp refuses them.", fixes)
