"""Keys that verl does not have, does not read, or wants a `+` for."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.findings import Change, Fix, Severity, Stage
from wizard.rules.case import Case
from wizard.rules.registry import Found, rule

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
            nearest = case.config.schema.nearest(fault.key)
            if not case.config.schema.knows(fault.key) and nearest:
                fixes = (Fix(f"use {nearest}", (Change(nearest, fault.value),)),)
            else:
                fixes = (Fix(f"write +{fault.key}", (Change(f"+{fault.key}", fault.value),)),)
        elif fault.kind == "already-there":
            fixes = (Fix("without the plus", (Change(fault.key, fault.value),)),)
        yield Found(fault.key, fault.message, fixes)


@rule(
    "unknown-key", "every key has a place in verl", Severity.WARNING, Stage.SILENT, (),
    "verl 0.9.1 trainer/config (composed); utils/config.py (omega_conf_to_dataclass)",
)  # fmt: skip
def unknown_key(case: Case) -> Iterator[Found]:
    """Typos in a YAML file compose. Under blocks that become dataclasses, workers stop on them; everywhere else the
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
        fixes = (Fix(f"use {nearest}", (Change(nearest, unknown.value),)),) if nearest else ()
        if unknown.target:
            name = unknown.target.rsplit(".", 1)[-1]
            text = f"{name} has no such field: workers stop.{hint}"
            yield Found(unknown.key, text, fixes, Severity.ERROR, Stage.WORKERS)
        else:
            yield Found(unknown.key, f"verl {case.config.version} does not read it; the default is used.{hint}", fixes)


@rule(
    "dead-key", "keys that nothing reads", Severity.WARNING, Stage.SILENT, tuple(_DEAD), "verl 0.9.1 (no reader)",
)  # fmt: skip
def dead_key(case: Case) -> Iterator[Found]:
    """They compose and have no effect."""
    for key, why in _DEAD.items():
        for given in case.config.given:
            if given == key or given.startswith(f"{key}.") or f".{key}." in f".{given}.":
                yield Found(given, f"{why}.")
                break
