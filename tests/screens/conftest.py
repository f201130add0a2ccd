"""The inspector starts when a screen asks it, not with every application: that would import torch a hundred times."""

from __future__ import annotations

from pathlib import Path

import pytest

from screens.app import WizardApp
from wizard.model.process import InspectorProcess
from wizard.plan import Plan


@pytest.fixture(autouse=True)
def _cold_inspector(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stay_cold(self: InspectorProcess) -> None:
        """Leave the process to the first question."""

    monkeypatch.setattr(InspectorProcess, "warm", stay_cold)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WizardApp:
    monkeypatch.chdir(tmp_path)
    return WizardApp(Plan(), tmp_path / "verl-wizard.yaml")
