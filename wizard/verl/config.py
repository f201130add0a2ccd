"""A person's verl configuration laid over verl's defaults, as Hydra would compose it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from wizard.verl.schema import Schema

Mode = Literal["file", "", "+", "++", "~"]
"""How a value was given: in a merged YAML, or on the command line with that prefix."""

MISSING = "???"


@dataclass(frozen=True)
class Assignment:
    """One thing the person said: `key` gets `value`, or (`~`) is taken away."""

    key: str
    value: Any
    mode: Mode = "file"
    origin: str = ""
    """`file:line`, or the argument as typed."""


@dataclass(frozen=True)
class Fault:
    """An assignment that Hydra refuses while it composes. Source: hydra-core 1.3 `_internal/config_loader_impl.py`."""

    key: str
    value: Any
    kind: Literal["not-in-struct", "already-there", "nothing-to-delete", "sweep", "group", "grammar"]
    message: str
    origin: str = ""


@dataclass(frozen=True)
class UnknownKey:
    """A given key for which verl has no place."""

    key: str
    value: Any
    nearest: str | None
    target: str
    """Dataclass that refuses it when a worker starts; empty where nothing does, so the key is ignored in silence."""
    origin: str = ""


class VerlConfig:
    """verl's defaults with a person's assignments applied in order; immutable."""

    def __init__(
        self,
        schema: Schema,
        assignments: Iterable[Assignment] = (),
        *,
        groups: Mapping[str, str] | None = None,
        faults: tuple[Fault, ...] = (),
        source: str = "",
    ) -> None:
        self.schema = schema
        self.assignments = tuple(assignments)
        self.groups: Mapping[str, str] = groups or {}
        """Config groups chosen (`model_engine=megatron`); the defaults here remain those of `dp`, that is FSDP."""
        self.source = source
        """Where the configuration came from, for messages."""
        self._tree: dict[str, Any] = schema.defaults
        found = list(faults)
        for entry in self.assignments:
            fault = self._apply(entry)
            if fault is not None:
                found.append(fault)
        self.faults = tuple(found)

    @property
    def version(self) -> str:
        """The verl release whose defaults these are."""
        return self.schema.version

    @functools.cached_property
    def given(self) -> Mapping[str, Any]:
        """Leaf keys the person gave with their unresolved values, the last one winning."""
        found: dict[str, Any] = {}
        for entry in self.assignments:
            if entry.mode == "~":
                _forget(found, entry.key)
                continue
            for key, value in _leaves(entry.key, entry.value):
                _forget(found, key)
                found[key] = value
        return found

    @functools.cached_property
    def _origins(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for entry in self.assignments:
            for key, _ in _leaves(entry.key, entry.value):
                found[key] = entry.origin
        return found

    def origin(self, key: str) -> str:
        """Return where a given key was said (`run.yaml:12`, or the argument), empty for a default."""
        return self._origins.get(key, "")

    def is_given(self, key: str) -> bool:
        """Return whether the person gave this key or anything below it."""
        return key in self.given or any(given.startswith(f"{key}.") for given in self.given)

    def raw(self, key: str, default: Any = None) -> Any:
        """Return the value at `key` with interpolations as written."""
        value: Any = self._tree
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Return the resolved value at a dotted key; a dict for a block.

        `default` stands in for a key that is absent, missing (`???`), or whose interpolation leads nowhere.
        """
        parts = tuple(key.split("."))
        try:
            value = self._select(parts, 0)
        except InterpolationError:
            return default
        return default if value is _ABSENT or value == MISSING else value

    def __contains__(self, key: str) -> bool:
        return self.raw(key, _ABSENT) is not _ABSENT

    def set(self, changes: Mapping[str, Any]) -> VerlConfig:
        """Return a configuration with these keys set, whether or not verl's YAML has them (`++key=value`)."""
        more = tuple(Assignment(key, value, "++") for key, value in changes.items())
        return VerlConfig(self.schema, (*self.assignments, *more), groups=self.groups, source=self.source)

    def unset(self, key: str) -> VerlConfig:
        """Return a configuration as if the person had not given `key` or anything below it."""
        kept: list[Assignment] = []
        for entry in self.assignments:
            if entry.key == key or entry.key.startswith(f"{key}."):
                continue
            if key.startswith(f"{entry.key}.") and isinstance(entry.value, dict):
                value = _without(entry.value, key[len(entry.key) + 1 :].split("."))
                entry = Assignment(entry.key, value, entry.mode, entry.origin)
            kept.append(entry)
        return VerlConfig(self.schema, kept, groups=self.groups, source=self.source)

    def unknown_keys(self) -> tuple[UnknownKey, ...]:
        """Return the given keys for which verl has no place, each with the key probably meant."""
        return tuple(
            UnknownKey(key, value, self.schema.nearest(key), self.schema.target_of(key), self.origin(key))
            for key, value in self.given.items()
            if not self.schema.knows(key) and not key.startswith("hydra.")
        )

    def differences(self) -> dict[str, Any]:
        """Return the given leaf keys whose value is not verl's default, unresolved."""
        return {
            key: value
            for key, value in self.given.items()
            if key not in self.schema
            or self.schema.node(key) != value
            or type(self.schema.node(key)) is not type(value)
        }

    def to_container(self, *, resolve: bool = True) -> dict[str, Any]:
        """Return the whole composed configuration as nested dicts, like `OmegaConf.to_container`.

        Raises:
            InterpolationError: an interpolation leads nowhere.
        """
        if not resolve:
            return self._tree
        value = self._resolve(self._tree, (), 0)
        assert isinstance(value, dict)
        return value

    def _apply(self, entry: Assignment) -> Fault | None:
        parts = entry.key.split(".")
        if entry.mode == "~":
            return self._delete(entry, parts)
        if entry.mode in ("", "+"):
            fault = self._refusal(entry)
            if fault is not None:
                return fault
        self._tree = _assign(self._tree, parts, entry.value)
        return None

    def _refusal(self, entry: Assignment) -> Fault | None:
        if entry.mode == "+":
            there = self.get(entry.key) is not None and not isinstance(entry.value, (dict, list))
            if not there:
                return None
            message = (
                f"+{entry.key}: verl's configuration has this key already, so Hydra refuses to append it. "
                f"Write {entry.key}=… without the plus, or ++{entry.key}=…"
            )
            return Fault(entry.key, entry.value, "already-there", message, entry.origin)
        absent = next((key for key, _ in _leaves(entry.key, entry.value) if key not in self), None)
        if absent is None:
            return None
        message = f"{absent} is not in verl {self.version}'s configuration, so Hydra refuses to override it."
        if self.schema.knows(absent):
            message += f" verl does read it: write +{absent}=…"
        else:
            nearest = self.schema.nearest(absent)
            message += f" Did you mean {nearest}?" if nearest else ""
        return Fault(absent, entry.value, "not-in-struct", message, entry.origin)

    def _delete(self, entry: Assignment, parts: list[str]) -> Fault | None:
        current = self.get(entry.key)
        if current is None or (entry.value is not None and entry.value != current):
            message = f"~{entry.key}: there is nothing of that name and value to delete, so Hydra refuses."
            return Fault(entry.key, entry.value, "nothing-to-delete", message, entry.origin)
        self._tree = _without(self._tree, parts)
        return None

    def _select(self, parts: tuple[str, ...], depth: int) -> Any:
        value: Any = self._tree
        for index, part in enumerate(parts):
            if isinstance(value, str) and "${" in value:
                value = self._resolve(value, parts[:index], depth)
            if isinstance(value, list) and part.lstrip("-").isdigit() and -len(value) <= int(part) < len(value):
                value = value[int(part)]
            elif isinstance(value, dict) and part in value:
                value = value[part]
            else:
                return _ABSENT
        return self._resolve(value, parts, depth)

    def _resolve(self, value: Any, at: tuple[str, ...], depth: int) -> Any:
        if isinstance(value, str) and "${" in value:
            if depth > 50:
                raise InterpolationError(f"{'.'.join(at)}: the interpolation {value} goes round in a circle")
            return self._evaluate(self._parsed(value, at), at, depth + 1)
        if isinstance(value, dict):
            return {name: self._resolve(child, (*at, name), depth) for name, child in value.items()}
        if isinstance(value, list):
            return [self._resolve(child, (*at, str(index)), depth) for index, child in enumerate(value)]
        return value

    def _parsed(self, text: str, at: tuple[str, ...]) -> Any:
        known = self.schema.interpolations.get(text)
        return known if known is not None else _parse(text, ".".join(at))

    def _evaluate(self, parsed: Any, at: tuple[str, ...], depth: int) -> Any:
        if not isinstance(parsed, dict):
            return parsed
        if "concat" in parsed:
            return "".join(str(self._evaluate(part, at, depth)) for part in parsed["concat"])
        if "node" in parsed:
            value = self._select(_absolute(parsed["node"], at), depth)
            if value is _ABSENT:
                raise InterpolationError(f"{'.'.join(at)}: interpolation key {parsed['node']} does not exist")
            return value
        name, arguments = parsed["resolver"], [self._evaluate(part, at, depth) for part in parsed["args"]]
        if name == "oc.select":
            value = self._select(_absolute(arguments[0], at), depth)
            missing = value is _ABSENT or value == MISSING
            return (arguments[1] if len(arguments) > 1 else None) if missing else value
        if name == "oc.env" and (len(arguments) > 1 or arguments[0] in os.environ):
            fallback = arguments[1] if len(arguments) > 1 else None
            return os.environ.get(arguments[0], None if fallback is None else str(fallback))
        raise InterpolationError(f"{'.'.join(at)}: ${{{name}:…}} can only be resolved while the run starts")


class InterpolationError(ValueError):
    """An interpolation that leads nowhere, or that only a running Hydra can resolve."""


_ABSENT: Any = object()


def _absolute(key: str, at: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of an interpolation's key: `.x` is a sibling of the node at `at`, `..x` an uncle."""
    up = len(key) - len(key.lstrip("."))
    name = key[up:].replace("[", ".").replace("]", "")
    parts = tuple(name.split("."))
    return (*at[: len(at) - up], *parts) if up else parts


@functools.lru_cache(maxsize=512)
def _parse(text: str, at: str) -> Any:
    # Only a person's own interpolation needs OmegaConf's grammar: importing it takes half of a check's time.
    from antlr4.error.Errors import ParseCancellationException
    from omegaconf.errors import GrammarParseError

    from wizard.verl.interpolation import parse_interpolation

    try:
        return parse_interpolation(text)
    except (GrammarParseError, ParseCancellationException) as error:
        raise InterpolationError(f"{at}: {text} is not an interpolation that OmegaConf reads: {error}") from error


def _plain_block(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(name, str) and "." not in name for name in value)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if _plain_block(value):
        for name, child in value.items():
            yield from _leaves(f"{key}.{name}" if key else name, child)
    else:
        yield key, value


def _forget(found: dict[str, Any], key: str) -> None:
    """Drop what giving `key` makes void: values below it, and a scalar above it."""
    for known in [known for known in found if known.startswith(f"{key}.") or key.startswith(f"{known}.")]:
        del found[known]


def _merge(old: Any, new: Any) -> Any:
    if not isinstance(new, dict):
        return new
    result = dict(old) if isinstance(old, dict) else {}
    for name, child in new.items():
        result[name] = _merge(result.get(name), child)
    return result


def _assign(tree: dict[str, Any], parts: list[str], value: Any) -> dict[str, Any]:
    result = dict(tree)
    if len(parts) == 1:
        result[parts[0]] = _merge(tree.get(parts[0]), value)
    else:
        below = tree.get(parts[0])
        result[parts[0]] = _assign(below if isinstance(below, dict) else {}, parts[1:], value)
    return result


def _without(tree: dict[str, Any], parts: list[str]) -> dict[str, Any]:
    result = dict(tree)
    if len(parts) == 1:
        result.pop(parts[0], None)
    elif isinstance(result.get(parts[0]), dict):
        result[parts[0]] = _without(result[parts[0]], parts[1:])
    return result
