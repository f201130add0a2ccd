"""The inspector starts when a screen asks it, not with every application: that would import torch a hundred times."""

from __future__ import annotations

import pytest

from wizard.model.process import InspectorProcess


@pytest.fixture(autouse=True)
def _cold_inspector(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stay_cold(self: InspectorProcess) -> None:
        """Leave the process to the first question."""

    monkeypatch.setattr(InspectorProcess, "warm", stay_cold)
