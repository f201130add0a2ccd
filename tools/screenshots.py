"""Writes the README's pictures: each screen of the wizard as SVG. Usage: screenshots.py [FOLDER]"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]
from screen_scenes import SCENES, fixed_host  # noqa: E402

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "img"
SIZE = (110, 32)
SHOWN = (
    "environment", "gpus", "model", "layer_classes", "precision_error", "offload", "batches", "placement_critic",
    "review", "validate_running", "validate_failed", "validate_passed",
)  # fmt: skip


async def picture(name: str, size: tuple[int, int] = SIZE) -> str:
    """Return one screen as SVG; the same bytes on every machine."""
    scene = SCENES[name]
    with tempfile.TemporaryDirectory() as folder, fixed_host(scene.rows, scene.gpus):
        app = scene.app(Path(folder))
        async with app.run_test(size=size) as pilot:
            await scene.play(pilot)
            return app.export_screenshot(title=f"verl-wizard: {name.replace('_', ' ')}")


def main(folder: Path = FOLDER) -> None:
    """Write all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHOWN:
        (folder / f"{name}.svg").write_text(asyncio.run(picture(name)), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
