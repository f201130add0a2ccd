"""Reads any configuration a person may have: a YAML, Hydra's record of an earlier run, an argument list, a Plan."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wizard.plan import Plan, PlanError
from wizard.plan_file import FILE_NAME, load_plan
from wizard.scrub import is_secret
from wizard.verl.config import Assignment, Fault, VerlConfig
from wizard.verl.export import equal, plan_to_config
from wizard.verl.keys import ExportedKey, Unmappable, exported_keys
from wizard.verl.overrides import OverrideError, parse_override
from wizard.verl.pools import with_pools
from wizard.verl.reader import Document, ReadError, flat, read_file
from wizard.verl.schema import Schema, known_versions, load_schema
from wizard.verl.versions import to_version

Kind = Literal["yaml", "overrides", "argv", "plan"]
NEWEST = known_versions()[-1]
_PLAN_SECTIONS = frozenset(field.name for field in dataclasses.fields(Plan))
HYDRA_OWN = frozenset(("defaults", "hydra"))
"""Sections of a file that are Hydra's, not verl's."""
_DIRECTORY = frozenset(("--config-dir", "-cd", "--config-path", "-cp"))
_NAME = frozenset(("--config-name", "-cn"))
_WITH_VALUE = _DIRECTORY | _NAME | {"--package", "-p", "--cfg", "-c"}


@dataclass(frozen=True)
class Imported:
    """What was read."""

    config: VerlConfig
    kind: Kind
    source: str
    plan: Plan | None = None
    """The Plan, where the file is one."""
    document: Document | None = None
    """The YAML with its lines, where there is one."""


def import_file(path: Path, version: str | None = None) -> Imported:
    """Read a YAML (full or partial), `.hydra/config.yaml`, `.hydra/overrides.yaml`, or a saved Plan; a folder gives
    its Plan, else its `.hydra/overrides.yaml`.

    Raises:
        ReadError: it is not a configuration; the message names file and line.
        PlanError: it is a Plan that cannot be read.
        OSError: it cannot be opened.
    """
    if path.is_dir():
        candidates = (path / FILE_NAME, path / ".hydra" / "overrides.yaml", path / "overrides.yaml", path / "run.yaml")
        found = next((candidate for candidate in candidates if candidate.exists()), None)
        if found is None:
            raise ReadError(f"{path}: holds neither {FILE_NAME} nor run.yaml nor .hydra/overrides.yaml.")
        path = found
    document = read_file(path)
    if isinstance(document.value, list):
        texts = [text for text in document.value if isinstance(text, str)]
        if len(texts) != len(document.value):
            raise ReadError(f"{path}: a list of overrides holds texts only, as in `- trainer.nnodes=1`.")
        origins = [document.at(str(index)) for index in range(len(texts))]
        config = _from_overrides(texts, origins, version, str(path))
        return Imported(config, "overrides", str(path), document=document)
    if not isinstance(document.value, dict):
        raise ReadError(f"{path}: empty, or not a mapping of keys. A verl configuration has keys such as `trainer:`.")
    if _is_plan(document.value):
        plan = load_plan(path)
        return Imported(plan_to_config(plan), "plan", str(path), plan=plan, document=document)
    schema = load_schema(version or _version_of(_keys_of(document.value)))
    return Imported(_from_document(document, schema), "yaml", str(path), document=document)


def import_argv(argv: Sequence[str], version: str | None = None, folder: Path | None = None) -> Imported:
    """Read what follows `python -m verl.trainer.main_ppo`; the whole command line may be given too.

    A file named by `--config-dir`/`--config-path` and `--config-name` is read under the overrides; relative folders
    are looked up in `folder` (default: the current one).

    Raises:
        ReadError: an argument or the file cannot be read.
        OSError: the file cannot be opened.
    """
    directory, name, overrides = _split(_arguments(argv))
    base: tuple[Assignment, ...] = ()
    document = None
    if directory is not None and not ((folder or Path()) / directory).is_dir():
        raise ReadError(f"--config-dir {directory}: no such folder, and Hydra stops. Give the folder of your YAML.")
    if directory is None and name not in (None, "ppo_trainer", "ppo_trainer.yaml"):
        raise ReadError(
            f"--config-name {name} without --config-dir: verl looks for it in its own folder only. "
            "Add --config-dir with the folder of your YAML."
        )
    if directory is not None and name is not None:
        path = (folder or Path()) / directory / f"{name.removesuffix('.yaml')}.yaml"
        document = read_file(path)
        if isinstance(document.value, dict):
            base = tuple(_assignments(document))
            version = version or _version_of(_keys_of(document.value))
    config = _from_overrides(overrides, overrides, version, " ".join(argv)[:80], base)
    return Imported(config, "argv", "command line", document=document)


def plan_from_file(path: Path) -> tuple[Plan, Path]:
    """Return a Plan to start from and the file it is to be saved to: beside a foreign file, never over it.

    Raises:
        PlanError: the file cannot be read, or is no configuration.
        OSError: it cannot be opened.
    """
    try:
        found = import_file(path)
    except ReadError as error:
        raise PlanError(str(error)) from error
    secret = [key for key in found.config.given if is_secret(key, found.config.raw(key))]
    if secret:
        raise PlanError(
            f"{found.config.origin(secret[0]) or path}: {', '.join(secret)} holds a key or password, which would stand "
            "in every file that is written. Export it as an environment variable and write ${oc.env:VARIABLE} there "
            "instead."
        )
    if found.plan is not None:
        return found.plan, Path(found.source)
    return config_to_plan(found.config, Plan()), Path(found.source).with_name(FILE_NAME)


def config_to_plan(config: VerlConfig, base: Plan) -> Plan:
    """Return `base` with everything the configuration gives; what the Plan does not say by itself is kept as it is.

    Not carried over: Hydra's own keys, deleted defaults, and keys of a role that this algorithm does not have (the
    Plan remembers their values, its files do not hold them).
    """
    plan = dataclasses.replace(base, target=dataclasses.replace(base.target, verl_version=config.version))
    decided: dict[str, str] = {}
    # A role follows the actor until it says something else, so the actor's fields come first; and of keys that one
    # field stands for, what the person gave comes before verl's defaults.
    entries = [entry for entry in exported_keys() if entry.path]
    for entry in sorted(entries, key=lambda entry: (_is_role(entry), not config.is_given(_name(entry, config)))):
        key = _name(entry, config)
        if entry.path in decided.values() or not (config.is_given(key) or _read_default(entry, plan)):
            continue
        value = config.get(key, entry.absent)
        with contextlib.suppress(Unmappable, PlanError):
            field = _fitting(entry.from_verl(value))
            if not equal(entry.to_verl(plan), value):
                plan = plan.replace(entry.path, field)
            decided[key] = entry.path
    plan = with_pools(plan, config)
    rest = {**dict(base.extra_overrides), **_rest(config, plan, decided)}
    return dataclasses.replace(plan, extra_overrides=tuple(rest.items()))


def _is_role(entry: ExportedKey) -> bool:
    return entry.path.split(".")[0] in ("ref", "critic")


def _name(entry: ExportedKey, config: VerlConfig) -> str:
    return to_version(entry.key, config.schema.minor)


def _read_default(entry: ExportedKey, plan: Plan) -> bool:
    """Return whether what verl assumes decides the field: the models' default is a path that nobody has."""
    return entry.path not in ("model.id", "model.critic_id") and entry.applies(plan)


def _rest(config: VerlConfig, plan: Plan, decided: Mapping[str, str]) -> dict[str, Any]:
    """Return what was given and neither stands in a field of the Plan nor in the files it makes anyhow."""
    written = plan_to_config(dataclasses.replace(plan, extra_overrides=()))
    rest: dict[str, Any] = {}
    for given in config.given:
        if given.split(".")[0] in HYDRA_OWN or given in decided:
            continue
        value = config.get(given, config.raw(given))
        if given not in written or not equal(written.get(given, written.raw(given)), value):
            rest[given] = config.raw(given)
    return rest


def _fitting(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _is_plan(value: dict[Any, Any]) -> bool:
    keys = set(value)
    return {"target", "machine", "batches"} <= keys and keys <= _PLAN_SECTIONS


def _version_of(keys: Iterable[str]) -> str:
    """Guess the release that keys were written for: the newest of those that lack fewest of them."""
    given = tuple(keys)

    def lacking(version: str) -> int:
        schema = load_schema(version)
        return sum(not schema.knows(key) for key in given)

    best, fewest = NEWEST, lacking(NEWEST)
    for version in reversed(known_versions()[:-1]):
        if not fewest:
            break
        if lacking(version) < fewest:
            best, fewest = version, lacking(version)
    return best


def _keys_of(value: dict[Any, Any]) -> list[str]:
    return [".".join(path) for path, _ in flat(value) if path and path[0] not in HYDRA_OWN]


def _assignments(document: Document) -> Iterable[Assignment]:
    for path, value in flat(document.value):
        if path and path[0] not in HYDRA_OWN:
            yield Assignment(".".join(path), value, "file", document.at(*path))


def _from_document(document: Document, schema: Schema) -> VerlConfig:
    return VerlConfig(schema, _assignments(document), source=document.source)


def _from_overrides(
    texts: Sequence[str],
    origins: Sequence[str],
    version: str | None,
    source: str,
    base: tuple[Assignment, ...] = (),
) -> VerlConfig:
    assignments: list[Assignment] = list(base)
    faults: list[Fault] = []
    groups: dict[str, str] = {}
    schema = load_schema(version or _version_of(_override_keys(texts)))
    for text, origin in zip(texts, origins, strict=True):
        try:
            found = parse_override(text)
        except OverrideError as error:
            message = f"Hydra cannot read the argument {error}. Write key=value, and quote values with blanks."
            faults.append(Fault(text.split("=")[0], text, "grammar", message, origin))
            continue
        if found.is_sweep:
            message = f"{text}: a list without brackets is a sweep, which verl's trainer does not run. Write [a,b]."
            faults.append(Fault(found.key, text, "sweep", message, origin))
        elif found.key.split("@")[0] in schema.groups:
            groups[found.key] = str(found.value)
        else:
            assignments.append(Assignment(found.key, found.value, found.mode, origin))
    return VerlConfig(schema, assignments, groups=groups, faults=tuple(faults), source=source)


def _override_keys(texts: Sequence[str]) -> list[str]:
    """Return the keys that plain overrides set; what Hydra alone can read says nothing about a release."""
    return [key for text in texts if "." in (key := text.split("=", 1)[0].lstrip("+~")) and "@" not in key]


def _arguments(argv: Sequence[str]) -> list[str]:
    """Return what verl's main gets of a whole command line: everything after the module or script."""
    words = list(argv)
    for index, word in enumerate(words):
        if word == "-m" and index + 1 < len(words) and words[index + 1].startswith("verl"):
            return words[index + 2 :]
        if word.endswith("main_ppo.py"):
            return words[index + 1 :]
    return words


def _split(arguments: Sequence[str]) -> tuple[str | None, str | None, list[str]]:
    """Return `--config-dir` (or path), `--config-name`, and the overrides; other flags of Hydra are passed over."""
    directory = name = None
    overrides: list[str] = []
    waiting = iter(arguments)
    for word in waiting:
        flag, sign, value = word.partition("=")
        if flag in _WITH_VALUE:
            value = value if sign else next(waiting, "")
            directory = value if flag in _DIRECTORY else directory
            name = value if flag in _NAME else name
        elif not word.startswith("-"):
            overrides.append(word)
    return directory, name, overrides
