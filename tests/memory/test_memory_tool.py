"""The measuring script, as far as a machine without a GPU can run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "measure_memory.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )


def test_lists_what_it_measures() -> None:
    listed = run("--dry-run").stdout.splitlines()
    assert len(listed) == len(set(listed)) >= 60


@pytest.mark.slow
def test_goes_on_where_it_stopped(tmp_path: Path) -> None:
    pytest.importorskip("verl")
    out = tmp_path / "rows.json"
    arguments = ("--smoke", "--only", "micro_batches=3", "--out", str(out))
    run(*arguments)
    first = json.loads(out.read_text())
    ran = [row for row in first["rows"] if "error" not in row]
    assert any(row["case"]["no_sync"] for row in ran)
    assert all(row["parameters"] > 0 for row in ran)
    assert "0 not run" in run(*arguments).stderr
    assert json.loads(out.read_text()) == first
