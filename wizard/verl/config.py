"""A person's verl configuration laid over verl's defaults, as Hydra would compose it."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from wizard.verl.schema import Schema

Mode = Literal["file", "", "+", "++", "~"]
"""How a value was given: in a merged YAML, or on the command line with that prefix."""

MISSING = "???"
MAX_DEPTH = 100
MAX_STEPS = 50_000
MAX_CHARACTERS = 1 << 20
"""verl's whole configuration takes 1500 steps, five deep; a person's file may be built to exhaust memory."""


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
    kind: Literal["not-in-struct", "already-there", "nothing-to-delete", "sweep", "list-for-block", "group", "grammar"]
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
    def refused(self) -> Mapping[str, Any]:
        """Keys whose assignment Hydra refuses, with the value that was said."""
        return {fault.key: fault.value for fault in self.faults}

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
            if isinstance(value, list) and _is_index(part, value):
                value = value[int(part)]
            elif isinstance(value, dict) and part in value:
                value = value[part]
            else:
                return default
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """Return the resolved value at a dotted key; a dict for a block.

        `default` stands in for a key that is absent, missing (`???`), or whose interpolation leads nowhere.
        """
        parts = tuple(key.split("."))
        try:
            value = self._select(parts, _Work())
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
            UnknownKey(key, value, self.schema.nearest(key, value), self.schema.target_of(key), self.origin(key))
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
        value = self._resolve(self._tree, (), _Work())
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
        if self._list_meets_block(parts, entry):
            message = (
                f"{entry.key}: a list stands where verl has a block of keys, or a block where verl has a list; "
                "Hydra merges neither. Give what verl has there."
            )
            return Fault(entry.key, entry.value, "list-for-block", message, entry.origin)
        self._tree = _assign(self._tree, parts, entry.value)
        return None

    def _list_meets_block(self, parts: list[str], entry: Assignment) -> bool:
        there: Any = self._tree
        for part in parts:
            if isinstance(there, list):
                if entry.mode == "file" or not _is_index(part, there):
                    return True
                there = there[int(part)]
            elif isinstance(there, dict):
                there = there.get(part)
            else:
                return False
        return (isinstance(there, dict) and isinstance(entry.value, list)) or (
            isinstance(there, list) and isinstance(entry.value, dict)
        )

    def _refusal(self, entry: Assignment) -> Fault | None:
        if entry.mode == "+":
            if self._selected(entry.key) is None or isinstance(entry.value, (dict, list)):
                return None
            message = (
                f"+{entry.key}: verl's configuration has this key already, so Hydra refuses to append it. "
                f"Write {entry.key}=… without the plus, or ++{entry.key}=…"
            )
            return Fault(entry.key, entry.value, "already-there", message, entry.origin)
        found = self._first_absent(entry.key, entry.value)
        if found is None:
            return None
        absent, value = found
        message = f"{absent} is not in verl {self.version}'s configuration, so Hydra refuses to override it."
        if self.schema.knows(absent):
            message += f" verl does read it: write +{absent}=…"
        else:
            nearest = self.schema.nearest(absent, value)
            message += f" Did you mean {nearest}?" if nearest else ""
        return Fault(absent, value, "not-in-struct", message, entry.origin)

    def _first_absent(self, key: str, value: Any) -> tuple[str, Any] | None:
        """Return the first key that the configuration lacks, with its value; a scalar's place may take a block."""
        if key not in self:
            return key, value
        if isinstance(self.raw(key), dict) and isinstance(value, dict):
            below = (self._first_absent(f"{key}.{name}", child) for name, child in value.items())
            return next((found for found in below if found is not None), None)
        return None

    def _delete(self, entry: Assignment, parts: list[str]) -> Fault | None:
        current = self._selected(entry.key)
        in_list = isinstance(self.raw(".".join(parts[:-1])), list)
        if in_list or current in (None, _UNRESOLVED) or (entry.value is not None and entry.value != current):
            message = f"~{entry.key}: there is nothing of that name and value to delete, so Hydra refuses."
            return Fault(entry.key, entry.value, "nothing-to-delete", message, entry.origin)
        self._tree = _without(self._tree, parts)
        return None

    def _selected(self, key: str) -> Any:
        """Return what Hydra finds at `key`: None where there is nothing, a block as it is written."""
        try:
            value = self._node(tuple(key.split(".")), _Work())
            if isinstance(value, str):
                value = self._resolve(value, tuple(key.split(".")), _Work())
        except InterpolationError:
            return _UNRESOLVED
        return None if value is _ABSENT or value == MISSING else value

    def _select(self, parts: tuple[str, ...], work: _Work) -> Any:
        value = self._node(parts, work)
        return value if value is _ABSENT else self._resolve(value, parts, work)

    def _node(self, parts: tuple[str, ...], work: _Work) -> Any:
        value: Any = self._tree
        for index, part in enumerate(parts):
            if isinstance(value, str) and "${" in value:
                value = self._resolve(value, parts[:index], work)
            if isinstance(value, list) and _is_index(part, value):
                value = value[int(part)]
            elif isinstance(value, dict) and part in value:
                value = value[part]
            else:
                return _ABSENT
        return value

    def _resolve(self, value: Any, at: tuple[str, ...], work: _Work) -> Any:
        if not (isinstance(value, (dict, list)) or (isinstance(value, str) and "${" in value)):
            return value
        with work.step(at):
            if isinstance(value, str):
                known = self.schema.interpolations.get(value)
                return self._evaluate(known if known is not None else _parse(value, ".".join(at)), at, work)
            if isinstance(value, dict):
                return {name: self._resolve(child, (*at, str(name)), work) for name, child in value.items()}
            return [self._resolve(child, (*at, str(index)), work) for index, child in enumerate(value)]

    def _evaluate(self, parsed: Any, at: tuple[str, ...], work: _Work) -> Any:
        if not isinstance(parsed, dict):
            return parsed
        if "concat" in parsed:
            text = "".join(str(self._evaluate(part, at, work)) for part in parsed["concat"])
            if len(text) > MAX_CHARACTERS:
                raise InterpolationError(f"{'.'.join(at)}: an interpolation of more than {MAX_CHARACTERS} characters")
            return text
        if "node" in parsed:
            value = self._select(_absolute(parsed["node"], at), work)
            if value is _ABSENT:
                raise InterpolationError(f"{'.'.join(at)}: interpolation key {parsed['node']} does not exist")
            return value
        name, arguments = parsed["resolver"], [self._evaluate(part, at, work) for part in parsed["args"]]
        if name in ("oc.select", "oc.env") and len(arguments) in (1, 2) and isinstance(arguments[0], str):
            fallback = arguments[1] if len(arguments) == 2 else None
            if name == "oc.select":
                value = self._select(_absolute(arguments[0], at), work)
                return fallback if value is _ABSENT or value == MISSING else value
            if arguments[0] in os.environ or len(arguments) == 2:
                return os.environ.get(arguments[0], None if fallback is None else str(fallback))
        raise InterpolationError(f"{'.'.join(at)}: ${{{name}:…}} can only be resolved while the run starts")


class InterpolationError(ValueError):
    """An interpolation that leads nowhere, or that only a running Hydra can resolve."""


_ABSENT: Any = object()
_UNRESOLVED: Any = object()


class _Work:
    """What one resolution may still cost: a few lines of YAML can refer to each other without end."""

    def __init__(self) -> None:
        self._depth = 0
        self._steps = 0

    @contextlib.contextmanager
    def step(self, at: tuple[str, ...]) -> Iterator[None]:
        self._depth += 1
        self._steps += 1
        if self._depth > MAX_DEPTH:
            raise InterpolationError(f"{'.'.join(at)}: the interpolation goes round in a circle")
        if self._steps > MAX_STEPS:
            raise InterpolationError(f"{'.'.join(at)}: resolving it takes more than {MAX_STEPS} steps")
        yield
        self._depth -= 1


def _absolute(key: str, at: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of an interpolation's key: `.x` is a sibling of the node at `at`, `..x` an uncle."""
    up = len(key) - len(key.lstrip("."))
    if up > len(at):
        raise InterpolationError(f"{'.'.join(at)}: the interpolation key {key} goes above the top")
    name = key[up:].replace("[", ".").replace("]", "").lstrip(".")
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
    except (GrammarParseError, ParseCancellationException, RecursionError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise InterpolationError(f"{at}: {text[:200]} is no interpolation that OmegaConf reads: {reason}") from error


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


def _is_index(part: str, items: list[Any]) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 9 and int(part) < len(items)


def _assign(tree: Any, parts: list[str], value: Any) -> Any:
    if isinstance(tree, list) and _is_index(parts[0], tree):
        index = int(parts[0])
        item = value if len(parts) == 1 else _assign(tree[index], parts[1:], value)
        return [*tree[:index], item, *tree[index + 1 :]]
    result = dict(tree) if isinstance(tree, dict) else {}
    name, below = parts[0], parts[1:]
    result[name] = _assign(result.get(name), below, value) if below else _merge(result.get(name), value)
    return result


def _without(tree: dict[str, Any], parts: list[str]) -> dict[str, Any]:
    result = dict(tree)
    if len(parts) == 1:
        result.pop(parts[0], None)
    elif isinstance(result.get(parts[0]), dict):
        result[parts[0]] = _without(result[parts[0]], parts[1:])
    return result
