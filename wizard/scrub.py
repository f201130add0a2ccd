"""Takes secrets and personal paths out of text that leaves the machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

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


def scrub(text: str) -> str:
    """Return `text` without keys, passwords in URLs, values of variables named like secrets, and home paths.

    A user's home becomes `~`; other people's homes lose their name.
    """
    for pattern in _SECRETS:
        text = pattern.sub(HIDDEN, text)
    text = _ASSIGNED.sub(_hide, text)
    home = str(Path.home())
    if home != os.sep:
        text = re.sub(rf"{re.escape(home)}(?=[/\s'\":,)]|$)", "~", text)
    return re.sub(r"/(home|Users)/[^/\s'\":]+", r"/\1/user", text)


def _hide(match: re.Match[str]) -> str:
    if _HARMLESS.search(match["name"]) or match["value"] in ("None", "null", "True", "False", "true", "false"):
        return match[0]
    return f"{match['name']}{match['sign']}{HIDDEN}"
