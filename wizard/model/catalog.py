"""Architectures known without torch or a network: written by `tools/build_catalog.py` with the inspector itself."""

from __future__ import annotations

import functools
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from wizard.facts import Architecture

FILE = Path(__file__).with_name("catalog.json.gz")


@dataclass(frozen=True)
class Preset:
    """One catalogued model."""

    id: str
    """Hugging Face id, or `tiny`."""
    title: str
    """Family and size, as in `Qwen2.5 7B`."""


@dataclass(frozen=True)
class _Entry:
    title: str
    architecture: Architecture
    config: dict[str, Any]


@functools.cache
def _catalog() -> dict[str, _Entry]:
    return msgspec.json.decode(gzip.decompress(FILE.read_bytes()), type=dict[str, _Entry])


def presets() -> tuple[Preset, ...]:
    """Return the catalogued models, the built-in one first."""
    return tuple(Preset(model, entry.title) for model, entry in _catalog().items())


def _entry(model: str) -> _Entry | None:
    return {name.lower(): entry for name, entry in _catalog().items()}.get(model.lower())


def preset(model: str) -> Architecture | None:
    """Return the architecture of a catalogued model, None for any other; letter case does not count."""
    found = _entry(model)
    return found.architecture if found else None


def preset_config(model: str) -> dict[str, Any] | None:
    """Return the config.json entries that give a model of that shape, None for a model not in the catalogue."""
    found = _entry(model)
    return dict(found.config) if found else None
