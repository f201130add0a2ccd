"""Consent to run a model's own code is to what was shown: a commit of the hub, or the bytes of a local folder's files.

Standard library only: the inspector asks here too.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from wizard.model.config_file import read_config, remote_code
from wizard.model.errors import RemoteCodeConsentNeeded

DIGEST = re.compile(r"sha256:[0-9a-f]{32}")
"""How a revision of a local folder's code is written."""


def code_revision(folder: Path) -> str:
    """Return the digest of all Python files below a local folder, by name and content.

    Raises:
        OSError: one of them cannot be read.
    """
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        if file.is_file():
            content = file.read_bytes()
            digest.update(f"{file.relative_to(folder)}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
    return f"sha256:{digest.hexdigest()[:32]}"


def check_consent(model: str, folder: Path, commit: str, *, revision: str, trust_remote_code: bool) -> tuple[str, ...]:
    """Return the files of its own that a model's config names, once somebody has agreed to run them as they are.

    Args:
        folder: where its config.json is.
        commit: the hub's commit of that folder; empty for a local one.
        revision: what was agreed to.

    Raises:
        RemoteCodeConsentNeeded: nobody has, or what they agreed to was something else.
        ModelError: config.json cannot be read.
    """
    files, classes = remote_code(read_config(folder))
    if files:
        now = commit or code_revision(folder)
        if not trust_remote_code or revision != now:
            raise RemoteCodeConsentNeeded(model, files, classes, now)
    return files
