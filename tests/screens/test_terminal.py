"""The real program in a real pseudo-terminal: what it loads, what it sends, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from terminal import DEADLINE_SECONDS, Terminal

from wizard.plan_file import FILE_NAME, load_plan

HEAVY = ("torch", "transformers", "verl", "ray", "numpy")
F3 = b"\x1bOR"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(tmp_path)
    found.until(b"1/10")
    yield found
    found.close()


def test_no_screen_needs_torch_transformers_verl_or_ray(tmp_path: Path):
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from screens.app import WizardApp\n"
        "from screens.steps import STEPS\n"
        "from wizard.plan import Plan\n"
        "async def main():\n"
        "    app = WizardApp(Plan(), Path('verl-wizard.yaml'))\n"
        "    async with app.run_test(size=(80, 24)) as pilot:\n"
        "        for step in STEPS:\n"
        "            app.go(step.id)\n"
        "            await pilot.pause()\n"
        "        assert app.screen.step_id == STEPS[-1].id\n"
        "asyncio.run(main())\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr[-3000:]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)])
def test_a_lost_terminal_keeps_the_answers_and_ends_everything(
    terminal: Terminal, tmp_path: Path, number: signal.Signals, code: int
):
    # Some steps in, so that there is something to keep.
    for title in (b"2/10", b"3/10", b"4/10", b"5/10"):
        terminal.send(F3)
        terminal.until(title)
    children = psutil.Process(terminal.pid).children(recursive=True)
    os.kill(terminal.pid, number)
    assert terminal.end() == code
    assert load_plan(tmp_path / FILE_NAME).model.id == "tiny"
    gone, alive = psutil.wait_procs(children, timeout=DEADLINE_SECONDS)
    assert alive == [], gone


def test_a_killed_wizard_leaves_no_process(terminal: Terminal):
    children: list[psutil.Process] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not children and time.monotonic() < deadline:
        terminal.read(0.2)
        children = psutil.Process(terminal.pid).children(recursive=True)
    assert children
    os.kill(terminal.pid, signal.SIGKILL)
    assert terminal.end() == -signal.SIGKILL
    _, alive = psutil.wait_procs(children, timeout=DEADLINE_SECONDS)
    assert alive == []


def test_ctrl_c_twice_leaves(terminal: Terminal):
    terminal.send(b"\x03")
    terminal.until(b"ctrl+c")
    os.write(terminal.fd, b"\x03")
    assert terminal.end() == 130


def test_ascii_and_no_mouse_hold_on_every_step(tmp_path: Path):
    terminal = Terminal(tmp_path, "--ascii", "--no-mouse")
    try:
        terminal.until(b"1/10")
        sent = terminal.seen
        for number in range(2, 11):
            terminal.send(F3)
            terminal.until(f"{number}/10".encode())
            sent += terminal.seen
        terminal.send(b"\x11")
        assert terminal.end() == 0
        sent += terminal.seen
    finally:
        terminal.close()
    assert sent.isascii()
    assert b"\x1b[?1000h" not in sent


def test_without_them_the_terminal_is_asked_for_more(terminal: Terminal):
    assert not terminal.seen.isascii()
    assert b"\x1b[?1000h" in terminal.seen


@pytest.mark.parametrize("steps", [4, 8])
def test_an_idle_screen_sends_nothing(terminal: Terminal, steps: int):
    for index in range(steps):
        terminal.send(F3)
        terminal.until(f"{index + 2}/10".encode())
    quiet_since = time.monotonic()
    deadline = quiet_since + DEADLINE_SECONDS
    while time.monotonic() - quiet_since < 2:
        assert time.monotonic() < deadline, terminal.seen[-300:]
        if terminal.read(0.2):
            quiet_since = time.monotonic()
