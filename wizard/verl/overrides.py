"""Reads Hydra's command line overrides: the plain ones directly, all others through Hydra's own parser.

Hydra's parser costs 150 ms to import and 0.4 ms an override, half of what a whole check may take. Plain overrides
(`a.b=1e-6`, `+x="y"`, `logger=['console','wandb']`) are therefore read here; a test holds the two equal.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from wizard.verl.config import Mode

_KEY = re.compile(r"(~|\+{1,2})?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=", re.ASCII)
MAX_CHARACTERS = 1 << 17
"""Linux hands no longer argument to a program (`MAX_ARG_STRLEN`)."""
_INT = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)
_FLOAT = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)", re.ASCII)
_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.\-@%+*|]*", re.ASCII)
_QUOTED = re.compile(r"""'([^'"\\$]*)'|"([^'"\\$]*)\"""")
_ITEM = re.compile(r"""(?:[^,'"]|'[^']*'|"[^"]*")+""")
_CONSTANTS = {"null": None, "true": True, "false": False}
_NOT_WORDS = re.compile(r"(?i)null|true|false|inf|nan")
_OTHER = object()


class OverrideError(ValueError):
    """An argument that Hydra's grammar refuses."""


@dataclass(frozen=True)
class Override:
    """One override as Hydra understands it."""

    key: str
    """Key or config group, with `@package` where given."""
    value: Any
    mode: Mode
    text: str
    is_sweep: bool = False


def parse_override(text: str) -> Override:
    """Read one argument such as `+actor_rollout_ref.model.override_config.attn_implementation=sdpa`.

    Raises:
        OverrideError: Hydra would refuse it; the message is Hydra's, shortened to its first line.
    """
    if len(text) > MAX_CHARACTERS:
        raise OverrideError(f"{text[:60]!r}…: longer than any argument can be")
    found = _KEY.match(text)
    if found:
        value = _plain(text[found.end() :])
        if value is not _OTHER:
            return Override(found[2], value, found[1] or "", text)  # type: ignore[arg-type]
    return _through_hydra(text)


def _plain(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip(" ")
        if not inner:
            return []
        parts = _ITEM.findall(inner)
        if ",".join(parts) != inner:
            return _OTHER
        items = [_scalar(part.strip(" ")) for part in parts]
        return _OTHER if any(item is _OTHER for item in items) else items
    return _scalar(text)


def _scalar(text: str) -> Any:
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        return quoted[1] if quoted[1] is not None else quoted[2]
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _WORD.fullmatch(text) and not _NOT_WORDS.fullmatch(text):
        return text
    return _OTHER


@functools.cache
def _hydra_parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _through_hydra(text: str) -> Override:
    parser = _hydra_parser()
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException

    shown = repr(text) if len(text) <= 200 else f"{text[:200]!r}…"
    try:
        parsed = parser.parse_override(text)
        sweep = parsed.is_sweep_override()
        value = None if sweep else parsed.value()
    except HydraException as error:
        raise OverrideError(f"{shown}: {str(error).splitlines()[0][:200]}") from error
    except RecursionError as error:
        raise OverrideError(f"{shown}: nested too deeply") from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise OverrideError(f"{shown}: {error}") from error
    modes: dict[Any, Mode] = {
        OverrideType.CHANGE: "",
        OverrideType.ADD: "+",
        OverrideType.FORCE_ADD: "++",
        OverrideType.DEL: "~",
    }
    key = parsed.key_or_group if parsed.package is None else f"{parsed.key_or_group}@{parsed.package}"
    return Override(key, value, modes[parsed.type], text, sweep)


def override_text(key: str, value: Any, mode: Mode = "") -> str:
    """Return an assignment as Hydra's command line takes it; `parse_override` gives it back.

    Names in a nested mapping must not hold quotes: Hydra's grammar has no way to write them.
    """
    prefix = "" if mode == "file" else mode
    if mode == "~" and value is None:
        return f"~{key}"
    return f"{prefix}{key}={_value_text(value)}"


def _value_text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_name_text(name)}:{_value_text(child)}" for name, child in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_value_text, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    if value == _scalar(value):
        return value
    # Hydra reads backslashes as escapes only where a quote follows them, the closing one included.
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", value)
    return "'" + re.sub(r"(\\+)\Z", lambda found: found[1] * 2, escaped) + "'"


def _name_text(name: Any) -> str:
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", _value_text(name) if not isinstance(name, str) else name)
