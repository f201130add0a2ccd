"""Keys as people set them: every binding by its id, the file that gives it other keys, and what is wrong in that."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import Keys, format_key, key_to_character
from textual.screen import ModalScreen

import screens
from wizard.state import config_folder
from wizard.steps import step_of
from wizard.text import printable
from wizard.verl.reader import ReadError, read_file

FILE_NAME = "keys.yaml"
MODIFIERS = frozenset(("alt", "ctrl", "hyper", "meta", "shift", "super"))
NAMED = frozenset(key.value for key in Keys if not key.value.startswith("<"))
TYPING = frozenset(("enter", "backspace", "delete", "space"))
"""Keys that a field needs, besides those that are a character."""


@dataclass(frozen=True)
class Owner:
    """A class of the screens that binds keys."""

    type: type[DOMNode]
    where: str
    bindings: tuple[Binding, ...]
    """Its own ones, each with all its keys."""


@dataclass(frozen=True)
class UserKeys:
    """What the file says: keys by binding id, as `App.set_keymap` takes them, and a line for each entry left out."""

    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problems: tuple[str, ...] = ()


DEFAULT_KEYS = UserKeys()


def keys_file() -> Path:
    """Return the person's file of keys; it need not exist."""
    return config_folder() / FILE_NAME


def bindings_of(owner: type[DOMNode]) -> Iterator[Binding]:
    """Yield the bindings that a class of the screens has, inherited ones after its own."""
    for base in owner.__mro__:
        if base.__module__.split(".")[0] == screens.__name__:
            for binding in vars(base).get("BINDINGS", ()):
                assert isinstance(binding, Binding)
                yield binding


@cache
def owners() -> tuple[Owner, ...]:
    """Return every class of the screens with keys of its own."""
    names = [module.name for module in pkgutil.walk_packages(screens.__path__, f"{screens.__name__}.")]
    classes = [
        value
        for name in names
        for value in vars(importlib.import_module(name)).values()
        if inspect.isclass(value) and issubclass(value, DOMNode) and _binds(value, name)
    ]
    return tuple(Owner(one, _where(one), tuple(vars(one)["BINDINGS"])) for one in classes)


def _binds(owner: type[DOMNode], module: str) -> bool:
    return owner.__module__ == module and "BINDINGS" in vars(owner)


def _where(owner: type[DOMNode]) -> str:
    step_id = getattr(owner, "step_id", "")
    return step_of(step_id).title if step_id else str(owner.BINDING_GROUP_TITLE)


def shown_key(key: str) -> str:
    """Return a key as people read it: `F4`, `ctrl+q`, `?`."""
    *modifiers, name = key.split("+")
    return "+".join([*modifiers, name.upper() if name[1:].isdigit() else format_key(name)])


def keyed(text: str, keys: Mapping[str, str], *types: type[DOMNode]) -> str:
    """Return a text in which `{id}` stands for the keys of that binding of one of the classes."""
    names = {binding.id: keys.get(binding.id or "", binding.key) for one in types for binding in bindings_of(one)}
    return text.format_map({name: "/".join(map(shown_key, split(keys))) for name, keys in names.items() if name})


def split(keys: str) -> list[str]:
    """Return the keys of a comma-separated list."""
    return [key.strip() for key in keys.split(",") if key.strip()]


def read_keys(path: Path | None = None) -> UserKeys:
    """Return the keys of the person's file; what is wrong in it is left out and said."""
    path = path or keys_file()
    try:
        entries = read_file(path).value
    except FileNotFoundError:
        return UserKeys()
    except ReadError as error:
        return UserKeys(problems=(f"{printable(str(error))} No key is changed.",))
    except OSError as error:
        return UserKeys(problems=(f"{path}: {error.strerror}. No key is changed.",))
    if entries is None:
        return UserKeys()
    if not isinstance(entries, dict):
        return UserKeys(problems=(f"{path}: not a list of `id: key`. No key is changed.",))
    known = {str(binding.id): binding for owner in owners() for binding in owner.bindings}
    keys, problems = {}, []
    for name, value in entries.items():
        text = "" if value is None else str(value)
        problem = _refusal(str(name), text, known)
        if problem:
            problems.append(f"{path}: {printable(f'{name}: {text}')}: {printable(problem)}")
        else:
            keys[str(name)] = ",".join(split(text))
    kept, clashing = _without_clashes(keys)
    return UserKeys(kept, (*problems, *(f"{path}: {line}" for line in clashing)))


def _refusal(name: str, text: str, known: Mapping[str, Binding]) -> str:
    """Return why an entry cannot be; empty when it can."""
    if name not in known:
        return f"no binding has this id{_near(name, known)}; `verl-wizard keys` lists them"
    if not split(text):
        return "no key is given"
    for key in split(text):
        if not _is_key(key):
            return f"{key!r} is not a key{_near(key.lower(), NAMED)}"
        if known[name].priority and (key in TYPING or key_to_character(key)):
            return f"{key!r} could no longer be used in fields; give it a function key or one with ctrl"
    return ""


def _near(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(words), n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def _is_key(text: str) -> bool:
    *modifiers, key = text.split("+")
    return MODIFIERS.issuperset(modifiers) and (key in NAMED or key_to_character(key) is not None)


def _without_clashes(keys: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Leave out what takes another binding's key, so that no command loses its own.

    Textual reports clashes too, but not with a default key of a binding that has an id, and only once a key is pressed.
    """
    problems: list[str] = []
    meant = _clashes({})
    while found := [clash for clash in _clashes(keys) if clash not in meant]:
        key, one, other, where = found[0]
        gone, left = (other, one) if other in keys else (one, other)
        problems.append(f"{gone}: {keys[gone]}: {shown_key(key)} is {left}'s ({where}); {gone} keeps its own key")
        keys = {name: value for name, value in keys.items() if name != gone}
    return keys, problems


def _clashes(keys: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Return key, first id, second id and place, wherever a screen would find two bindings for one key."""
    found = []
    for owner in owners():
        taken: dict[str, str] = {}
        for binding in (*bindings_of(owner.type), *_of_the_app(owner.type)):
            name = str(binding.id)
            for key in split(keys.get(name, binding.key)):
                if taken.setdefault(key, name) != name:
                    found.append((key, taken[key], name, owner.where))
    return found


def _of_the_app(owner: type[DOMNode]) -> Iterator[Binding]:
    """Yield the application's bindings that reach a screen."""
    from screens.app import WizardApp
    from screens.app_bindings import STEP_ACTIONS
    from screens.base import StepScreen

    for binding in bindings_of(WizardApp):
        reaches = binding.priority or not issubclass(owner, ModalScreen)
        if reaches and (issubclass(owner, StepScreen) or binding.action not in STEP_ACTIONS):
            yield binding
