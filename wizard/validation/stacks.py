"""Where every rank of a hung run is: its Python stack, asked for with a signal and read back. Standard library only.

A rank writes its stacks to a file of its own on SIGUSR1 (CPython `faulthandler.register`); that works while the
interpreter is stuck in C code, but not while the process is stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

COLLECTIVES = "collectives_rank"
"""How the files of NCCL's flight recorder in the run folder begin; the rank follows, and `.pipe` for its pipe."""
RECORD_SECONDS = 5.0
"""How long NCCL's flight recorder has; it looks at its pipe once a second."""
ASK_SECONDS = 2.0
"""How long the ranks have to answer; faulthandler needs milliseconds."""
STACKS_REQUEST, STACKS_ANSWER = "stacks.ask", "stacks.json"
"""Files in the run folder by which the launcher asks a driver for the stacks of ranks on other machines."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|\bgather|\bscatter|\bsend|\brecv"
    r"|init_process_group|rendezvous"
)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")
_STATES = {"T": "stopped (SIGSTOP)", "t": "stopped by a debugger", "D": "waiting for a disk or a driver", "Z": "dead"}


@dataclass(frozen=True)
class Frame:
    """One Python frame."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})"


@dataclass(frozen=True)
class RankStack:
    """What one rank was doing."""

    rank: int
    step: str
    state: str = ""
    """What hinders the process, from the kernel: stopped, dead, waiting for a driver; empty when nothing does."""
    frames: tuple[Frame, ...] = ()
    """The main thread's stack, innermost first; empty when the rank gave no answer."""

    @property
    def collective(self) -> str:
        """The collective it waits in, as torch's function is named; empty when it is in none."""
        for frame in self.frames:
            if not _LIBRARY.search(frame.file):
                return ""
            if "/torch/distributed/" in frame.file and _COLLECTIVE.search(frame.function):
                return frame.function.lstrip("_")
        return ""

    @property
    def place(self) -> Frame | None:
        """The innermost frame that is neither Python's nor an installed package's."""
        return next((frame for frame in self.frames if not _LIBRARY.search(frame.file)), None)

    @property
    def sentence(self) -> str:
        """Where the rank is, in words."""
        where = f" at {self.place}" if self.place else ""
        if self.state:
            what = f"is {self.state}"
        elif not self.frames:
            what = "did not answer"
        elif self.collective:
            what = f"waits in {self.collective}"
        else:
            what = f"is in {self.frames[0]}"
            where = "" if self.place == self.frames[0] else where.replace(" at ", ", called by ")
        return f"rank {self.rank} {what}{where}, step {self.step or 'start'}"


def stack_file(folder: Path, rank: int) -> Path:
    """Return where a rank writes its stacks when it is asked."""
    return folder / f"rank{rank}.stack"


def parse_stacks(text: str, marker: str = "wizard/validation/worker.py") -> tuple[Frame, ...]:
    """Return the stack of the thread that runs `marker`'s file, else of the last thread (the oldest), innermost first.

    Reads what CPython 3.10–3.14 `faulthandler` prints, the last dump where there are several.
    """
    threads: list[list[Frame]] = []
    for line in text.splitlines():
        found = _FRAME.match(line)
        if _THREAD.match(line):
            threads.append([])
        elif found and threads:
            threads[-1].append(Frame(found["file"], int(found["line"]), found["function"]))
    ours = [thread for thread in threads if any(frame.file.endswith(marker) for frame in thread)]
    return tuple((ours or threads or [[]])[-1])


def ask_stacks(folder: Path, pids: dict[int, int], steps: dict[int, str]) -> tuple[RankStack, ...]:
    """Ask the ranks of this machine for their stacks and wait for the answers, `ASK_SECONDS` at most.

    `pids` are by rank, 0 where the process is not known yet; `steps` are what each rank was last doing.
    """
    asked = {rank for rank, pid in pids.items() if pid and _listens(pid)}
    for rank in asked:
        with contextlib.suppress(OSError):
            os.kill(pids[rank], signal.SIGUSR1)
    _record_collectives(folder)
    deadline = time.monotonic() + ASK_SECONDS
    found: dict[int, tuple[Frame, ...]] = {}
    while len(found) < len(asked) and time.monotonic() < deadline:
        time.sleep(0.05)
        for rank in asked - set(found):
            with contextlib.suppress(OSError):
                text = stack_file(folder, rank).read_text(encoding="utf-8", errors="replace")
                # The marker's frame is the outermost but the entry's: once it is there, the stack is whole.
                if text.count("_target_entry.py"):
                    found[rank] = parse_stacks(text)
    return tuple(
        RankStack(rank, steps.get(rank, ""), _state(pid) if pid else "not started", found.get(rank, ()))
        for rank, pid in sorted(pids.items())
    )


def _record_collectives(folder: Path) -> None:
    """Let torch write each rank's last collectives (`c10d/ProcessGroupNCCL.cpp`, `DumpPipe`), where it records them."""
    pipes = list(folder.glob(f"{COLLECTIVES}*.pipe"))
    for pipe in pipes:
        with contextlib.suppress(OSError):
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(writer, b"1")
            os.close(writer)
    deadline = time.monotonic() + RECORD_SECONDS
    while pipes and time.monotonic() < deadline:
        if all(pipe.with_suffix("").exists() for pipe in pipes):
            return
        time.sleep(0.1)


def _listens(pid: int) -> bool:
    """Whether the process handles SIGUSR1: one that does not would die of it."""
    mask = re.search(r"^SigCgt:\s*([0-9a-f]+)", _read(Path(f"/proc/{pid}/status")), re.MULTILINE)
    return mask is not None and bool(int(mask[1], 16) >> (signal.SIGUSR1 - 1) & 1) and not _state(pid)


def _state(pid: int) -> str:
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return _STATES.get(fields[0], "") if fields else "gone"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
