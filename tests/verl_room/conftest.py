"""verl's own defaults as Hydra composes them, without importing verl."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

Compose = Callable[[Sequence[str]], Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("verl") is not None:
        return
    for item in items:
        if item.get_closest_marker("verl"):
            item.add_marker(pytest.mark.skip(reason="verl is not installed in this interpreter"))


@pytest.fixture(scope="session")
def verl_config_folder() -> Path:
    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "trainer", "config")


@pytest.fixture
def hydra_compose(verl_config_folder: Path) -> Iterator[Compose]:
    """Compose verl's trainer configuration with overrides, by Hydra itself."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(verl_config_folder), version_base=None):
        yield lambda overrides: compose("ppo_trainer", overrides=list(overrides))
