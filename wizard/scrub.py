"""Takes secrets and personal paths out of text. Standard library only: ranks tell their events through it."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

_NAME = r"[\w.-]*(?:token|secret|passw(?:or)?d|api[-_]?key|access[-_]?key|credential|auth)[\w-]*"
_SECRETS = (
    # Hub, OpenAI-like, GitHub, AWS, Slack and Google keys have prefixes of their own.
    re.compile(
        r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abp]-|AKIA|ASIA|AIza|dckr_pat_|nvapi-|wandb_v1_)[\w-]{8,}"
    ),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{8,}"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
)
_ASSIGNED = re.compile(rf"(?i)\b(?P<name>{_NAME})(?P<sign>['\"]?\s*[=:]\s*['\"]?)(?P<value>[^\s'\",;&}}]{{4,}})")
_HARMLESS = re.compile(r"(?i)max_|num_|_len|tokens|per_token|_id$|tokenizer")
HIDDEN = "[hidden]"
_SECRET_KEY = re.compile(
    r"(?i)(?:^|[._-])(?<!eos[._-])(?<!bos[._-])(?<!pad[._-])(?<!unk[._-])(?<!stop[._-])"
    r"(?:token|secret|passw(?:or)?d|api[-_]?key|access[-_]?key|secret[-_]?key|private[-_]?key|credentials?)$"
)
_SHORTEST = 8
"""Characters of a secret: anything shorter would be found in ordinary text."""


def hide_secrets(text: str) -> str:
    """Return `text` without keys, passwords in URLs, and values of environment variables named like secrets."""
    for secret in _environment_secrets():
        text = text.replace(secret, HIDDEN)
    for pattern in _SECRETS:
        text = pattern.sub(HIDDEN, text)
    return text


def is_secret(key: str, value: Any) -> bool:
    """Whether a setting holds a secret, by its name or by what it looks like; `${oc.env:NAME}` holds none."""
    if isinstance(value, dict):
        return any(is_secret(str(name), child) for name, child in value.items())
    if isinstance(value, (list, tuple)):
        return any(is_secret(key, item) for item in value)
    if not isinstance(value, str) or "${" in value:
        return False
    named = _SECRET_KEY.search(key) is not None and len(value) >= _SHORTEST
    return named or hide_secrets(value) != value


@functools.cache
def _environment_secrets() -> tuple[str, ...]:
    values = (value for name, value in os.environ.items() if _SECRET_KEY.search(name) and len(value) >= _SHORTEST)
    return tuple(sorted(values, key=len, reverse=True))


def scrub(text: str) -> str:
    """Return `text` without keys, passwords in URLs, values of variables named like secrets, and home paths.

    A user's home becomes `~`; other people's homes lose their name.
    """
    text = _ASSIGNED.sub(_hide, hide_secrets(text))
    home = str(Path.home())
    if home != os.sep:
        text = re.sub(rf"{re.escape(home)}(?=[/\s'\":,)]|$)", "~", text)
    return re.sub(r"/(home|Users)/[^/\s'\":]+", r"/\1/user", text)


def _hide(match: re.Match[str]) -> str:
    if _HARMLESS.search(match["name"]) or match["value"] in ("None", "null", "True", "False", "true", "false"):
        return match[0]
    return f"{match['name']}{match['sign']}{HIDDEN}"
