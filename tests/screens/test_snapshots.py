"""Every screen in its main states, as it was last looked at. After a wanted change: pytest --snapshot-update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytest_textual_snapshot import SVGImageExtension
from screen_scenes import SCENES, fixed_host
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot


@pytest.fixture(autouse=True)
def _one_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the person's own terminal would change."""
    for name in ("NO_COLOR", "COLORTERM", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", SCENES)
async def test_screen(name: str, snapshot: SnapshotAssertion, tmp_path: Path) -> None:
    scene = SCENES[name]
    seen = snapshot.use_extension(SVGImageExtension)
    with fixed_host(scene.rows, scene.gpus):
        # One application for both sizes: starting it is most of the time.
        async with scene.app(tmp_path).run_test(size=(80, 24)) as pilot:
            await scene.play(pilot)
            assert await settled(pilot) == seen(name="80x24")
            await pilot.resize_terminal(120, 40)
            assert await settled(pilot) == seen(name="120x40")


async def settled(pilot: Pilot[Any]) -> str:
    """Return the screen once it does not change any more."""
    before, now = "", pilot.app.export_screenshot()
    while now != before:
        await pilot.pause(0.05)
        before, now = now, pilot.app.export_screenshot()
    return now
