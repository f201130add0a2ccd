"""The wizard in a terminal, and the way to its screens by keys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.bench.terminal import COLUMNS_AND_LINES, Terminal

MODEL = "Qwen/Qwen2.5-7B-Instruct"
STEPS = 10
STATE_FOLDER = "state"
WIZARD = (sys.executable, "-m", "wizard")
BACK, NEXT, TAB, SHIFT_TAB, ENTER, BACKSPACE = b"\x1bOQ", b"\x1bOR", b"\t", b"\x1b[Z", b"\r", b"\x7f"


def generate(folder: Path, model: str = MODEL, gpus: str = "8x80GB", *more: str) -> None:
    """Write the configuration that is measured into a folder, with the wizard's own command."""
    asked = ["--model", model, "--gpus", gpus, "--verl-version", "0.9.1", *more, "--out", str(folder)]
    subprocess.run([*WIZARD, "generate", *asked], check=True, stdout=subprocess.DEVNULL)


def open_wizard(folder: Path, size: tuple[int, int] = COLUMNS_AND_LINES, python: Path | None = None) -> Terminal:
    """Start the wizard on the folder's Plan, with its state in the folder, and wait for the first screen."""
    argv = [*WIZARD, "--resume", *(["--python", str(python)] if python else [])]
    state = {"XDG_STATE_HOME": str(folder / STATE_FOLDER), "XDG_CACHE_HOME": str(folder / "cache")}
    terminal = Terminal(argv, folder, size, {"COLORTERM": "truecolor", **state})
    terminal.until_text(f"1/{STEPS}")
    return terminal


def go_to(terminal: Terminal, step: int) -> None:
    """Press the keys that lead to a step, counted from 1."""
    while (number := _step(terminal)) != step:
        following = number + 1 if number < step else number - 1
        terminal.press(NEXT if number < step else BACK, f" {following}/{STEPS} ", 0)


def _step(terminal: Terminal) -> int:
    return int(terminal.line(0).partition("/")[0])
