"""What the tree must not hold, and how the rooms may know each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = [path for folder in ("wizard", "screens", "generators") for path in sorted((ROOT / folder).rglob("*.py"))]
LARGEST_BYTES = 20_000


def test_import_contracts():
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_module(path: Path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < LARGEST_BYTES, "more than one subject?"
    assert not re.search(r"(?m)\bTODO\b|\bFIXME\b|\bXXX\b|^\s*raise NotImplementedError", text)
    assert not text or text.lstrip().startswith(('"""', "from __future__")), "no docstring"


def test_every_pin_comes_from_the_index():
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.!]+", pin)] == []
    assert "torch==2.13.0" in pins


def test_target_modules_need_nothing_of_ours_but_torch_and_transformers():
    """The worker, the inspector and the probe run where only the training's packages are."""
    code = (
        "import sys, importlib.abc\n"
        "class Refuse(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.split('.')[0] in ('textual', 'msgspec', 'yaml', 'omegaconf', 'ruamel', 'psutil', 'rich'):\n"
        "            raise ImportError(name + ' is not in the target')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import wizard.validation.worker, wizard.validation.agent, wizard.model.tiny, wizard.probe.installed\n"
        "import wizard.nodes.ray_driver, wizard.cluster.worker, wizard.cluster.node_facts, wizard.cluster.measure\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
