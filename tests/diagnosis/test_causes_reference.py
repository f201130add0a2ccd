"""docs/debug.md lists the causes as they are."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_page_is_current():
    done = subprocess.run([sys.executable, ROOT / "tools" / "causes_reference.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run tools/causes_reference.py"
