"""The keys, types and defaults of verl's trainer configuration, per released version."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wizard.state import cache_folder

SCHEMAS = Path(__file__).with_name("schemas")


class SchemaError(Exception):
    """No schema for that verl; the message is for the person."""


@dataclass(frozen=True)
class DataclassField:
    """One field of the dataclass that verl builds from a block of the configuration."""

    annotation: str
    default: str | None
    """Source text of the default; None where verl demands a value."""

    @property
    def free_form(self) -> bool:
        """Whether verl takes any key below it: a plain dict, or something untyped."""
        return re.match(r"(typing\.)?(Optional\[)?(typing\.)?([Dd]ict|Any)\b", self.annotation) is not None


class Schema:
    """What one verl release composes from `ppo_trainer` with nothing given.

    Source: the release's wheel, `verl/trainer/config` and the `_target_` dataclasses, read by `wizard.verl.extract`.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.version: str = data["version"]
        self.defaults: dict[str, Any] = data["defaults"]
        """Nested, interpolations unresolved; never change it."""
        self.interpolations: dict[str, Any] = data["interpolations"]
        self.config_files: frozenset[str] = frozenset(data["config_files"])
        """Names (no `.yaml`) that a user's file must not have: with `--config-dir`, verl's own file wins silently."""
        self.groups: frozenset[str] = frozenset(data["groups"])
        """Hydra config groups: `model_engine=megatron` chooses another engine's whole set of defaults."""
        self._dataclasses: dict[str, dict[str, list[Any]]] = data["dataclasses"]

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version, as in `(0, 9)`."""
        return minor_of(self.version)

    @functools.cached_property
    def keys(self) -> Mapping[str, Any]:
        """Every leaf's dotted key with its unresolved default; an empty dict counts as a leaf."""
        found: dict[str, Any] = {}
        _flatten(self.defaults, "", found)
        return found

    def node(self, key: str) -> Any:
        """Return the unresolved default at a dotted key, a dict for a block.

        Raises:
            KeyError: verl's composed configuration has no such key.
        """
        value: Any = self.defaults
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                raise KeyError(key)
            value = value[part]
        return value

    def __contains__(self, key: str) -> bool:
        try:
            self.node(key)
        except KeyError:
            return False
        return True

    def target_of(self, key: str) -> str:
        """Return the dataclass verl builds from the block that holds `key` (its `_target_`), empty if it builds "
        "none."""
        try:
            block = self.node(key.rpartition(".")[0]) if "." in key else self.defaults
        except KeyError:
            return ""
        return str(block.get("_target_", "")) if isinstance(block, dict) else ""

    def field_of(self, key: str) -> DataclassField | None:
        """Return the dataclass field that `key` fills, also where the YAML does not show it."""
        found = self._dataclasses.get(self.target_of(key), {}).get(key.rpartition(".")[2])
        return DataclassField(*found) if found else None

    def type_of(self, key: str) -> str:
        """Return the type verl declares for `key`, else the type of its default."""
        field = self.field_of(key)
        if field is not None:
            return field.annotation
        try:
            value = self.node(key)
        except KeyError:
            return ""
        return "Any" if value is None else type(value).__name__

    def free_form(self, key: str) -> bool:
        """Return whether `key` lies below a block in which verl accepts any name: `wrap_policy`, `override_config`, ….

        Such a block is an empty dict in the YAML, or a dict-typed field of the dataclass.
        """
        parts = key.split(".")
        for length in range(1, len(parts)):
            parent = ".".join(parts[:length])
            field = self.field_of(parent)
            if field is not None and field.free_form:
                return True
            if parent in self and self.node(parent) == {}:
                return True
        return False

    def knows(self, key: str) -> bool:
        """Return whether verl has a place for `key`: in its YAML, in a dataclass, or in a free-form block."""
        return key in self or self.field_of(key) is not None or self.free_form(key)

    def needs_plus(self, key: str) -> bool:
        """Return whether Hydra wants `+key=value` on the command line, since the YAML lacks the key."""
        return key not in self

    def nearest(self, key: str, value: Any = None) -> str | None:
        """Return the known key that `key` was probably meant to be, of a type that `value` fits; None if none is near.

        The last name decides: the same one elsewhere, or a spelling close to it; then how like the blocks are.
        """
        import difflib

        parent, _, leaf = key.rpartition(".")
        alike = set(difflib.get_close_matches(leaf, {name.rpartition(".")[2] for name in self._all_names}, 12, 0.75))
        best, best_score = None, 0.0
        for known in self._all_names:
            block, _, name = known.rpartition(".")
            if name not in alike or not _misspelt(leaf, name) or not self._takes(known, value):
                continue
            spelling = difflib.SequenceMatcher(None, leaf, name).ratio()
            spelling += 0.1 * (leaf.split("_")[0] == name.split("_")[0])
            place = difflib.SequenceMatcher(None, parent, block).ratio() if parent != block else 1.0
            if place >= 0.3 and spelling + place > best_score:
                best, best_score = known, spelling + place
        return best

    def _takes(self, key: str, value: Any) -> bool:
        """Return whether a value is of the kind that verl declares, or shows by its default, at `key`."""
        if value is None or (isinstance(value, str) and "${" in value):
            return True
        declared = self.type_of(key)
        kind = "list" if isinstance(value, tuple) else type(value).__name__
        default = self.keys.get(key)
        if "Any" in declared or (isinstance(default, str) and "${" in default):
            return True
        if kind == "int":
            return re.search(r"\b(int|float)\b", declared) is not None
        if kind == "dict":
            return isinstance(default, dict) or "dict" in declared.lower() or key not in self.keys
        return re.search(rf"\b{kind}\b", declared, re.IGNORECASE) is not None

    @functools.cached_property
    def _all_names(self) -> tuple[str, ...]:
        names: dict[str, None] = dict.fromkeys(self.keys)

        def visit(block: dict[str, Any], prefix: str) -> None:
            for name in self._dataclasses.get(block.get("_target_", ""), ()):
                names.setdefault(prefix + name)
            for name, child in block.items():
                if isinstance(child, dict):
                    names.setdefault(prefix + name)
                    visit(child, f"{prefix}{name}.")

        visit(self.defaults, "")
        return tuple(name for name in names if not name.endswith("_target_"))


def _misspelt(said: str, known: str) -> bool:
    """Return whether one name can be meant by the other: `grad_offload` is another thing than `param_offload`."""
    import difflib

    if said.replace("_", "").lower() == known.replace("_", "").lower():
        return True
    fewer, more = sorted((said.split("_"), known.split("_")), key=len)
    return all(difflib.get_close_matches(word, more, 1, 0.6) for word in fewer)


def _flatten(block: dict[str, Any], prefix: str, into: dict[str, Any]) -> None:
    for name, value in block.items():
        if isinstance(value, dict) and value:
            _flatten(value, f"{prefix}{name}.", into)
        else:
            into[prefix + name] = value


def minor_of(version: str) -> tuple[int, int]:
    """Return major and minor of a version string: `0.9.1` → `(0, 9)`.

    Raises:
        SchemaError: the string does not begin with two numbers.
    """
    found = re.match(r"v?(\d+)\.(\d+)", version.strip())
    if not found:
        raise SchemaError(f"{version!r} is not a verl version. Give one such as 0.9.1.")
    return int(found[1]), int(found[2])


@functools.cache
def known_versions() -> tuple[str, ...]:
    """Return the releases whose schema is recorded, oldest first."""
    return tuple(
        sorted((path.stem for path in SCHEMAS.glob("*.json")), key=lambda name: [int(part) for part in name.split(".")])
    )


def recorded_version(version: str) -> str:
    """Return the recorded release that stands for `version`: the same minor version.

    Raises:
        SchemaError: no release of that minor version is recorded.
    """
    wanted = minor_of(version)
    for known in known_versions():
        if minor_of(known) == wanted:
            return known
    raise SchemaError(
        f"verl {version} is not one of the versions recorded here ({', '.join(known_versions())}). "
        "Choose one of them, or name an interpreter that has this verl with --python."
    )


def extracted_path(version: str) -> Path:
    """Return where the schema of a release that is not recorded here is kept, once it was read in a target."""
    return cache_folder() / "schemas" / f"{re.sub(r'[^0-9A-Za-z.+]', '_', version)}.json"


@functools.cache
def load_schema(version: str = "0.9.1") -> Schema:
    """Return the schema of a verl version: recorded, read in a target before, else of the same minor version.

    Raises:
        SchemaError: no release of that minor version is known.
    """
    if version not in known_versions():
        try:
            return Schema(json.loads(extracted_path(version).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # never read in a target, or not whole
    return Schema(json.loads((SCHEMAS / f"{recorded_version(version)}.json").read_bytes()))
