"""How to run one of our modules in the target interpreter, the one that training will use."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

ENTRY = Path(__file__).with_name("_target_entry.py")
"""The script that torchrun, Ray or a plain subprocess starts in the target interpreter."""


def target_command(python: str, module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the argv that runs `module.main(arguments)` under `python` (empty: this interpreter).

    The module may import only the standard library, torch, transformers, and other modules of that kind.
    """
    return [os.path.expanduser(python) or sys.executable, str(ENTRY), module, *arguments]
