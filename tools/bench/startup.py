"""How soon the wizard stands and answers keys, beside applications of Textual that do nothing else."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from tools.bench.results import Result, Spread, spread_note
from tools.bench.terminal import Terminal
from tools.bench.wizard_terminal import BACKSPACE, generate, go_to, open_wizard

BARE = """
from textual.app import App
from textual.widgets import Input, Static


class Bare(App):
    def compose(self):
        yield {widget}


Bare().run()
"""
STANDS = "stands"
EDITED_STEP, EDITED_FIELD = 7, "max prompt length"
OVER_LIMIT_MS = 50.0
"""What the design allows the first paint over Textual's own."""
KEY_LIMIT_MS = 50.0


def first_paint(rounds: int = 10) -> list[Result]:
    """Measure from the start of the process to the first paint, bare and wizard in turns."""
    bare, own = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder)
        script = _bare(folder, f"Static({STANDS!r})")
        for _ in range(rounds):
            with Terminal([sys.executable, str(script)], folder) as terminal:
                bare.append((terminal.until_text(STANDS) - terminal.started) * 1e3)
            with open_wizard(folder) as terminal:
                own.append((terminal.received_at - terminal.started) * 1e3)
    floor, ours = Spread(bare), Spread(own)
    over = ours.median - floor.median
    return [
        Result("start-up", "to the first paint", ours.median, "ms", peer="bare Textual", peer_value=floor.median,
               samples=rounds, note=f"fastest {min(own):.0f} ms, bare {min(bare):.0f} ms"),
        Result("start-up", "over bare Textual", over, "ms", OVER_LIMIT_MS, samples=rounds,
               note=f"of the fastest {min(own) - min(bare):.0f} ms"),
    ]  # fmt: skip


def keys(presses: int = 100) -> list[Result]:
    """Measure how long a typed character takes to be painted, in a field of the wizard and in a bare one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder)
        with Terminal([sys.executable, str(_bare(folder, "Input('1024')"))], folder) as terminal:
            terminal.until_text("1024")
            bare = Spread(_typed(terminal, "1024", presses))
        with open_wizard(folder) as terminal:
            go_to(terminal, EDITED_STEP)
            terminal.quiet(1.0)
            own = Spread(_typed(terminal, EDITED_FIELD, presses))
    return [
        Result("keys", "typing into a step's field, p95", own.p95, "ms", KEY_LIMIT_MS, samples=presses,
               note=spread_note(own)),
        Result("keys", "typing into a step's field, median", own.median, "ms", peer="bare Textual Input",
               peer_value=bare.median, samples=presses, note=f"bare p95 {bare.p95:.1f} ms"),
    ]  # fmt: skip


def _bare(folder: Path, widget: str) -> Path:
    script = folder / "bare.py"
    script.write_text(BARE.format(widget=widget))
    return script


def _typed(terminal: Terminal, mark: str, presses: int) -> list[float]:
    """Replace the number on the line that holds a mark, digit by digit, at times of no rhythm; return milliseconds."""
    line = next(number for number, text in enumerate(terminal.screen.display) if mark in text)
    chance, text, taken = random.Random(0), "", []
    for _ in range(presses):
        # Judged 80 ms after a key, the Plan may keep the next key waiting: some come then.
        terminal.listen(chance.uniform(0.04, 0.3))
        grow = len(text) < 2 or (len(text) < 4 and chance.random() < 0.5)
        digit = chance.choice([each for each in "123456789" if each != text[-1:]])
        text = text + digit if grow else text[:-1]
        key = digit.encode() if grow else BACKSPACE
        taken.append(terminal.press(key, f" {text} ", line) * 1e3)
    return taken
