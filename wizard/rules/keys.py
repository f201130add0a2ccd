"""Keys that verl does not have, does not read, or wants a `+` for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wizard.findings import Change, Fix, Severity, Stage
from wizard.rules.case import OWNERS, Case
from wizard.rules.registry import Found, rule
from wizard.verl.keys import ACTOR, MODEL, REF, ROLLOUT

_DEAD = {
    "model.tiled_mlp": "the FSDP engine does not read it",
    "model_mapping": "no verl ever read it; roles are placed by resource pools",
}
_MOVED = {"critic.model.fsdp_config": "critic.fsdp"}
"""Before 0.8 → since."""


@rule(
    "hydra-refuses", "Hydra composes the configuration", Severity.ERROR, Stage.COMPOSITION, (),
    "hydra-core 1.3 _internal/config_loader_impl.py",
)  # fmt: skip
def hydra_refuses(case: Case) -> Iterator[Found]:
    """On the command line, a key that is not in verl's YAML needs a +, and one that is there must not have it. In a
    YAML file nothing is checked."""
    for fault in case.config.faults:
        fixes: tuple[Fix, ...] = ()
        if fault.kind == "not-in-struct":
            if case.config.schema.knows(fault.key):
                fixes = (Fix(f"write +{fault.key}", (Change(f"+{fault.key}", fault.value),)),)
            else:
                fixes = _instead(fault.key, fault.value, case.config.schema.nearest(fault.key, fault.value))
        elif fault.kind == "nothing-to-delete":
            fixes = _instead(fault.key, None, None)
        elif fault.kind == "already-there":
            fixes = (Fix("without the plus", (Change(fault.key, fault.value),)),)
        yield Found(fault.key, fault.message, fixes)


def _instead(key: str, value: Any, nearest: str | None) -> tuple[Fix, ...]:
    """Offer the key that was meant, else to take the key away: nothing would read it."""
    if nearest:
        return (Fix(f"use {nearest}", (Change(nearest, value),)),)
    return (Fix("remove it", (Change(f"~{key}", None),)),)


def _built(case: Case, key: str) -> Stage | None:
    """Return when verl makes a dataclass of the block that holds `key`, None where it never does in this run."""
    when = {
        f"{ACTOR}.": Stage.DRIVER,
        "critic.": Stage.DRIVER if case.uses_critic else None,
        f"{REF}.": Stage.WORKERS if "ref" in case.engines else None,
        f"{ROLLOUT}.": Stage.WORKERS,
        f"{MODEL}.": Stage.WORKERS,
        "distillation.": Stage.TRAINER if case.flag("distillation.enabled") else None,
        "skip.": Stage.TRAINER,
    }
    return next((stage for block, stage in when.items() if key.startswith(block)), None)


@rule(
    "unknown-key", "every key has a place in verl", Severity.WARNING, Stage.SILENT, (),
    "verl 0.9.1 trainer/config (composed); utils/config.py (omega_conf_to_dataclass)",
)  # fmt: skip
def unknown_key(case: Case) -> Iterator[Found]:
    """Typos in a YAML file compose. Blocks that become dataclasses refuse them: actor and critic in verl's first
    check, model, rollout and reference when workers start. Everywhere else, `algorithm` and `reward` included, the
    run goes on with the default."""
    refused = {fault.key for fault in case.config.faults}
    for unknown in case.config.unknown_keys():
        if unknown.key in refused or unknown.key.split(".")[0] in _DEAD:
            continue
        moved = next((new for old, new in _MOVED.items() if unknown.key.startswith(f"{old}.")), None)
        nearest = unknown.nearest
        if moved and case.config.schema.minor >= (0, 8):
            old = next(old for old in _MOVED if unknown.key.startswith(f"{old}."))
            nearest = moved + unknown.key[len(old) :]
        hint = f" Did you mean {nearest}?" if nearest else ""
        fixes = _instead(unknown.key, unknown.value, nearest)
        stage = _built(case, unknown.key)
        if unknown.target and stage is not None:
            name = unknown.target.rsplit(".", 1)[-1]
            yield Found(unknown.key, f"{name} has no such field: verl stops.{hint}", fixes, Severity.ERROR, stage)
        else:
            # It may be a value of the person's own that others refer to: it is not taken away.
            text = f"verl {case.config.version} does not read it; the default is used.{hint}"
            yield Found(unknown.key, text, fixes if nearest else ())


@rule(
    "torch-compile-dead", "entropy is compiled by fsdp_config.use_torch_compile", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.use_torch_compile", "actor_rollout_ref.ref.use_torch_compile"),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:184-186, trainer/config/engine/fsdp.yaml:54",
)  # fmt: skip
def torch_compile_dead(case: Case) -> Iterator[Found]:
    """The engine reads its own block's switch, which does not follow the role's."""
    if case.config.schema.minor < (0, 9):
        return
    for role in case.engines:
        if role == "critic":
            continue
        old, new = f"{OWNERS[role]}.use_torch_compile", case.engine_key(role, "use_torch_compile")
        value = case.get(old)
        if case.config.is_given(old) and isinstance(value, bool) and value != case.get(new):
            fix = Fix(f"use {new}", (Change(new, value),))
            yield Found(old, f"the engine does not read it; {new} decides.", (fix,))


@rule(
    "orig-params-fsdp2", "use_orig_params is read by fsdp only", Severity.NOTE, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.use_orig_params",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:425-472",
)  # fmt: skip
def orig_params_fsdp2(case: Case) -> Iterator[Found]:
    """fsdp2 shards each parameter by itself and keeps it visible in any case."""
    for role in case.engines:
        key = case.engine_key(role, "use_orig_params")
        if case.strategy(role) == "fsdp2" and case.config.is_given(key) and case.flag(key):
            yield Found(key, "fsdp2 does not read it.")


@rule(
    "dead-key", "keys that nothing reads", Severity.WARNING, Stage.SILENT, tuple(_DEAD), "verl 0.9.1 (no reader)",
)  # fmt: skip
def dead_key(case: Case) -> Iterator[Found]:
    """They compose and have no effect."""
    for key, why in _DEAD.items():
        for given in case.config.differences():
            if given == key or given.startswith(f"{key}.") or f".{key}." in f".{given}.":
                yield Found(given, f"{why}.")
                break
