"""A run's folder as other programs see it: whether its run goes on, how it ended, and the wish that it ends.

Whoever runs it holds a lock on a file in it (`flock`), which the kernel takes back however that process ends: neither
clocks nor process ids say whether a run goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import time
from pathlib import Path
from typing import IO

import msgspec

from wizard.state import state_folder
from wizard.validation.spec import ValidationSpec
from wizard.validation.verdict import Verdict

RESULT = "result.json"
SPEC = "spec.json"
_OWNER = "owner.lock"
_END = "end"
_MOST_RANKS = 1 << 16


class NoRun(ValueError):
    """A folder that holds no validation; the message names it."""


def runs_folder() -> Path:
    """Return the folder of all run folders; it may not exist yet."""
    return state_folder() / "runs"


def new_run_folder(parent: Path | None = None) -> Path:
    """Make and return a folder for one run, which nobody else can read."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    folder = (parent or runs_folder()) / name
    folder.mkdir(parents=True, mode=0o700)
    return folder


def own(folder: Path) -> IO[bytes]:
    """Take a run's lock and return the file that holds it until it is closed.

    Raises:
        OSError: the folder cannot be written.
    """
    lock = (folder / _OWNER).open("wb")
    # A file system without locks: then nobody is offered this run.
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def goes_on(folder: Path) -> bool:
    """Whether the process that runs this validation lives."""
    try:
        with (folder / _OWNER).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def run_going_on(runs: Path | None = None) -> Path | None:
    """Return the folder of the newest validation that another process of this person runs now; None without one."""
    try:
        folders = sorted((runs or runs_folder()).iterdir(), reverse=True)
    except OSError:
        return None
    return next((folder for folder in folders if goes_on(folder)), None)


def ask_to_end(folder: Path) -> None:
    """Leave word for the process that runs this validation to cancel it.

    Raises:
        OSError: the folder is gone or cannot be written.
    """
    (folder / _END).touch()


def asked_to_end(folder: Path) -> bool:
    """Whether somebody wants this run to end."""
    return (folder / _END).exists()


def read_spec_of(folder: Path) -> ValidationSpec:
    """Return what a run was to do.

    Raises:
        NoRun: the folder holds no validation.
        OSError: its file cannot be read.
    """
    file = folder / SPEC
    try:
        spec = msgspec.json.decode(file.read_bytes(), type=ValidationSpec)
    except FileNotFoundError as error:
        raise NoRun(f"{folder}: not the run folder of a validation: it has no {SPEC}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoRun(f"{file}: not what a validation writes: {error}") from error
    if not 1 <= spec.world_size <= _MOST_RANKS:
        raise NoRun(f"{file}: world_size = {spec.world_size} is not a number of ranks.")
    return spec


def write_result(folder: Path, verdict: Verdict) -> None:
    """Keep the verdict for whoever looks later; a full disk or a vanished folder keeps it from nobody here."""
    text = json.dumps(msgspec.to_builtins(verdict) | {"sentence": verdict.sentence}, indent=1)
    with contextlib.suppress(OSError):
        unfinished = folder / f".{RESULT}"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(folder / RESULT)


def read_result(folder: Path) -> Verdict | None:
    """Return how a run ended; None where it did not come to a verdict.

    Raises:
        NoRun: the file is not what a validation writes.
        OSError: it cannot be read.
    """
    file = folder / RESULT
    try:
        return msgspec.json.decode(file.read_bytes(), type=Verdict)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoRun(f"{file}: not the result of a validation: {error}") from error
