"""The real program in a real pseudo-terminal while a validation runs: however it ends, nothing is left over."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from terminal import DEADLINE_SECONDS, Terminal

import wizard
from wizard.model.catalog import preset
from wizard.model.tiny import ensure_tiny
from wizard.plan import Model, Plan
from wizard.plan_file import FILE_NAME, load_plan, plan_to_yaml
from wizard.validation.launcher import RUN_VARIABLE

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
F3, F5, CTRL_C = b"\x1bOR", b"\x1b[15~", b"\x03"


@pytest.fixture
def group() -> Iterator[Path | None]:
    """A cgroup of our own, which no process in it can leave; None where none can be made."""
    root = Path("/sys/fs/cgroup")
    path = (root / "pids" if (root / "pids").is_dir() else root) / f"verl-wizard-{os.getpid()}"
    try:
        path.mkdir()
    except OSError:
        yield None
        return
    yield path
    empty(path)
    path.rmdir()


def empty(group: Path) -> None:
    """Wait until no process is in a cgroup."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (group / "cgroup.procs").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Plan of the built-in model, and run folders of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plan = Plan(model=Model(id=str(ensure_tiny()), attention="sdpa"), architecture=preset("tiny"))
    (tmp_path / FILE_NAME).write_text(plan_to_yaml(plan))
    return tmp_path


@pytest.fixture
def running(folder: Path, group: Path | None) -> Iterator[Terminal]:
    """The wizard in the middle of a validation."""

    terminal = Terminal(folder, FILE_NAME)
    if group is not None:
        (group / "cgroup.procs").write_text(str(terminal.pid))
    terminal.until(b"1/10")
    for step in range(2, 11):
        terminal.send(F3)
        terminal.until(f"{step}/10".encode())
    terminal.send(F5)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not list(folder.rglob("rank1.jsonl")):
        assert time.monotonic() < deadline, terminal.seen[-2000:]
        terminal.read(0.2)
    yield terminal
    terminal.close()


def marked(folder: Path) -> list[psutil.Process]:
    """All processes of the runs below a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(RUN_VARIABLE, "")
            if mark.startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def press_twice(terminal: Terminal) -> None:
    terminal.send(CTRL_C)
    terminal.until(b"again")
    os.write(terminal.fd, CTRL_C)


def hang_up(terminal: Terminal) -> None:
    """What a lost connection does: the terminal's other side is closed, and the kernel tells its session."""
    os.dup2(os.open(os.devnull, os.O_RDWR), terminal.fd)


ENDS: dict[str, tuple[Callable[[Terminal], None], int]] = {
    "terminal gone": (hang_up, 128 + signal.SIGHUP),
    "ctrl+c twice": (press_twice, 130),
    "kill -9": (lambda terminal: os.kill(terminal.pid, signal.SIGKILL), -signal.SIGKILL),
}


@pytest.mark.parametrize("end", ENDS)
def test_no_process_outlives_the_wizard(running: Terminal, folder: Path, group: Path | None, end: str):
    mine = psutil.Process(running.pid).children(recursive=True)
    # The agent, torchrun, and two ranks.
    assert len([process for process in mine if "wizard.validation.worker" in process.cmdline()]) == 4
    act, code = ENDS[end]
    act(running)
    assert running.end() == code
    _, alive = psutil.wait_procs(mine, timeout=DEADLINE_SECONDS)
    assert alive == []
    if group is not None:
        empty(group)
    assert load_plan(folder / FILE_NAME).model.id == str(ensure_tiny())


def test_the_next_start_offers_to_watch_a_run_that_goes_on_and_ends_it_there(folder: Path):
    command = [sys.executable, "-m", "wizard", "validate", str(folder), "--cpu", "--tokens", "65536"]
    owner = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not list(folder.rglob("rank1.jsonl")):
        assert time.monotonic() < deadline
        assert owner.poll() is None
        time.sleep(0.05)
    terminal = Terminal(folder)
    try:
        terminal.until(b"holds answers")
        terminal.send(b"y")
        terminal.until(b"A validation is going on since")
        terminal.send(b"y")
        terminal.until(b"10/10")
        terminal.until(b"load")
        assert owner.poll() is None
        terminal.send(b"c")
        terminal.until(b"Another wizard or command runs this validation")
        terminal.send(b"y")
        assert owner.wait(DEADLINE_SECONDS) == 130
        terminal.until(b"Cancelled")
        terminal.send(b"q")
        assert terminal.end() == 0
        assert marked(folder) == []
    finally:
        terminal.close()
        owner.kill()
        owner.wait()


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the program, one of whose own data files was cut off."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    home = Path(wizard.__file__).parents[1]
    for name in ("wizard", "screens", "generators"):
        shutil.copytree(home / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    data = tmp_path / "wizard" / "model" / "catalog.json.gz"
    data.write_bytes(data.read_bytes()[:100])
    return tmp_path


def test_an_error_nobody_foresaw_is_one_line_and_keeps_the_answers(damaged: Path):
    """In a key's handler, and in a command."""
    log = damaged / "state" / "verl-wizard" / "error.log"
    line = f"verl-wizard: unexpected EOFError: Compressed file ended before the end-of-stream marker was reached; the traceback is in {log}"
    terminal = Terminal(damaged)
    try:
        terminal.until(b"1/10")
        terminal.send(F3 + F3)
        terminal.until(line.encode())
        assert terminal.end() == 1
    finally:
        terminal.close()
    assert b"Traceback" not in terminal.seen
    assert "catalog.py" in log.read_text()
    assert load_plan(damaged / FILE_NAME).model.id == "tiny"
    command = [sys.executable, "-m", "wizard", "inspect", "Qwen/Qwen3-0.6B"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=damaged, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{line}\n")


def test_commands_on_a_terminal_show_hostile_names_as_text(tmp_path: Path):
    """A file's name, an option, a table's cells, and a parser's own message."""
    name = "\x1b]0;owned\x07\x1b[2J$(touch owned)"
    file = tmp_path / f"{name}.yaml"
    file.write_text("nope: 1\n")
    for arguments in (("check", file.name), ("check", "--", f"trainer.{name}=1"), (f"--{name}",), ("validate", name)):
        terminal = Terminal(tmp_path, *arguments)
        try:
            assert terminal.end() in (1, 2)
            while terminal.read(0.2):
                continue
            assert b"owned" in terminal.seen
            assert not set(b"\x1b\x07") & set(terminal.seen), terminal.seen
        finally:
            terminal.close()
    assert not (tmp_path / "owned").exists()
