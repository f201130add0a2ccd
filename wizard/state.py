"""Where this program keeps what belongs to no single folder: runs, logs, caches, keys (XDG base directories)."""

from __future__ import annotations

import os
from pathlib import Path


def _folder(variable: str, default: str) -> Path:
    given = os.environ.get(variable, "")
    base = Path(given) if os.path.isabs(given) else Path.home() / default
    return base / "verl-wizard"


def state_folder() -> Path:
    """Return the folder for run folders and logs; it may not exist yet."""
    return _folder("XDG_STATE_HOME", ".local/state")


def cache_folder() -> Path:
    """Return the folder for what can be made again, such as the built-in model; it may not exist yet."""
    return _folder("XDG_CACHE_HOME", ".cache")


def config_folder() -> Path:
    """Return the folder for what the person sets for every sitting, such as keys; it may not exist yet."""
    return _folder("XDG_CONFIG_HOME", ".config")
