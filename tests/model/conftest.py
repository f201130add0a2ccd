"""Model folders as people have them, good and bad."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from wizard.model.process import InspectorProcess

MakeFolder = Callable[..., str]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def inspector() -> AsyncIterator[InspectorProcess]:
    """One warm inspector for all tests of a worker."""
    process = InspectorProcess()
    yield process
    await process.close()


@pytest.fixture
def model_folder(tmp_path: Path) -> MakeFolder:
    """Write a folder: `config` as JSON (or bytes as they are), further files by name."""

    def make(config: Any, **files: str) -> str:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        data = config if isinstance(config, bytes) else json.dumps(config).encode()
        (folder / "config.json").write_bytes(data)
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return str(folder)

    return make
