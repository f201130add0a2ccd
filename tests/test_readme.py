"""Every command of the README is run, in its order, in one folder."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
LOG = "(WorkerDict pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


def test_every_block_is_a_console_block():
    assert set(re.findall(r"```(\w*)\n", README)) <= {"console", ""}
    assert len(COMMANDS) >= 12


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_commands_in_order(tmp_path: Path):
    (tmp_path / "train.log").write_text(LOG)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in COMMANDS:
        if command.startswith("make "):
            # `make setup` and `make test` are what CI itself runs; `make run` has a test of its own.
            continue
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": path},
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def _is_set_up() -> bool:
    stamp = ROOT / ".venv" / ".installed"
    inputs = [(ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt")]
    return stamp.exists() and stamp.stat().st_mtime >= max(inputs)


@pytest.mark.skipif(not _is_set_up(), reason="`make run` would first install here; `make setup` does that")
def test_make_run_opens_the_wizard(tmp_path: Path):
    # The wizard saves answers where it is started: a folder of its own, with the checkout's set-up.
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", XDG_STATE_HOME=str(tmp_path), COLUMNS="80", LINES="24")
        os.execvp("make", ["make", "-C", str(tmp_path), "run"])
    painted = b""
    deadline = time.monotonic() + 60
    left = False
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            try:
                painted += os.read(terminal, 65536)
            except OSError:
                break
        if b"1/10" in painted and not left:
            left = True
            os.write(terminal, b"\x11")
    _, status = os.waitpid(child, 0)
    assert b"1/10" in painted, painted[-2000:]
    assert os.waitstatus_to_exitcode(status) == 0, painted[-500:]
