"""Runs a launch script with stand-ins for the programs it starts, which write down how they were called.

Nothing of the training starts: python, torchrun, ray, sbatch and the like are found first on PATH as a script that
records its arguments and succeeds. In bash a guard (`capture_guard.bash`) keeps them first, whatever the script does
to PATH, and catches programs called by their path. Other shells have no such hook: a script for them is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

STAND_INS = (
    *(
        "python",
        "python3",
        "python3.10",
        "python3.11",
        "python3.12",
        "python3.13",
        "torchrun",
        "ray",
        "uv",
        "pip",
        "pip3",
    ),
    *("accelerate", "deepspeed", "conda", "mamba", "micromamba", "poetry", "pipenv", "pixi"),
    *(
        "sbatch",
        "srun",
        "salloc",
        "scontrol",
        "squeue",
        "ssh",
        "scp",
        "pdsh",
        "mpirun",
        "docker",
        "podman",
        "apptainer",
    ),
    *(
        "singularity",
        "kubectl",
        "huggingface-cli",
        "hf",
        "wandb",
        "wget",
        "curl",
        "git",
        "sleep",
        "rm",
        "pkill",
        "killall",
    ),
    # Programs that start another one: their arguments hold the call.
    *(
        "env",
        "nohup",
        "setsid",
        "timeout",
        "nice",
        "ionice",
        "stdbuf",
        "numactl",
        "taskset",
        "sudo",
        "xargs",
        "nsys",
        "ncu",
    ),
    *("zsh", "fish", "csh", "tcsh", "perl", "ruby"),
)
"""Programs that launch scripts call and that must not really run here."""
VARIABLE = "VERL_WIZARD_CAPTURE"
MAX_CALLS = 500
GUARD = Path(__file__).with_name("capture_guard.bash")

_TRAINER = "verl.trainer.main_ppo"

_STAND_IN = r"""#!/bin/sh
# Written by verl-wizard capture: records a call and succeeds.
exec {python} -I -S {recorder} "{name}" "$@" </dev/null
"""
_RECORDER = r"""
import json, os, sys
call = json.dumps({"name": sys.argv[1], "argv": sys.argv[2:], "folder": os.getcwd()})
descriptor = os.open(os.environ["VERL_WIZARD_CAPTURE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(descriptor, call.encode() + b"\n")
"""


class CaptureError(Exception):
    """The script could not be run to its end; the message is for the person."""


@dataclass(frozen=True)
class Call:
    """One program that the script started."""

    name: str
    argv: tuple[str, ...]
    folder: str

    def __str__(self) -> str:
        return shlex.join((self.name, *self.argv))[:200]


@dataclass(frozen=True)
class Calls:
    """What a script would have started."""

    training: Call | None
    """The call of verl's trainer."""
    others: tuple[Call, ...]


def capture(command: Sequence[str], time_limit_seconds: float = 60.0) -> Calls:
    """Run `command` with the stand-ins first on PATH and return what was called.

    Raises:
        CaptureError: no trainer was started within the time, or the command failed before it called anything.
        OSError: it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="verl-wizard-capture-") as name:
        folder = Path(name)
        record = folder / "calls.jsonl"
        environment = _prepare(folder, record)
        # A file, not a pipe: what the script leaves in the background would hold a pipe open.
        with (folder / "stderr").open("w+b") as errors:
            process = subprocess.Popen(
                _through_bash(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
            try:
                process.wait(time_limit_seconds)
            except subprocess.TimeoutExpired:
                pass
            finally:
                ended = process.returncode is not None
                _end(process)
            errors.seek(max(0, errors.tell() - 4096))
            last = (errors.read().decode("utf-8", "replace").strip() or "no message").splitlines()[-1][:300]
        calls = _read(record)
    trained = [(index, found) for index, call in enumerate(calls) if (found := _as_trainer(call)) is not None]
    if not trained and not ended:
        waiting = f" It last called: {calls[-1]}" if calls else ""
        raise CaptureError(
            f"{shlex.join(command)}: not at its end within {time_limit_seconds:g} s; it was stopped.{waiting}"
        )
    if not calls and process.returncode:
        raise CaptureError(
            f"{shlex.join(command)}: ended with code {process.returncode} before it called anything: {last}"
        )
    first, training = trained[0] if trained else (-1, None)
    return Calls(training, tuple(call for index, call in enumerate(calls[:MAX_CALLS]) if index != first))


def _through_bash(command: Sequence[str]) -> list[str]:
    """Return the command so that bash runs it: `bash x.sh`, `sh x.sh`, or a script with such a first line.

    Raises:
        CaptureError: another shell or program, which has no hook to keep the training from starting.
    """
    first = Path(command[0]).name
    if first in ("bash", "sh", "dash", "ash"):
        return ["bash", *command[1:]]
    script = Path(command[0])
    try:
        with script.open("rb") as stream:
            line = stream.readline(256)
    except OSError as error:
        raise CaptureError(
            f"{command[0]}: {error.strerror}. Give the script's own command, as in: bash run.sh"
        ) from error
    if line.startswith(b"#!") and any(shell in line.split()[-1] for shell in (b"bash", b"/sh", b"dash")):
        return ["bash", str(script), *command[1:]]
    raise CaptureError(
        f"{command[0]}: only bash and sh scripts can be run without starting what they start. "
        "For anything else give the overrides themselves: verl-wizard check -- key=value …"
    )


def _prepare(folder: Path, record: Path) -> dict[str, str]:
    stand_ins = folder / "bin"
    stand_ins.mkdir()
    recorder = folder / "record.py"
    recorder.write_text(_RECORDER, encoding="utf-8")
    for name in STAND_INS:
        path = stand_ins / name
        python, script = shlex.quote(sys.executable), shlex.quote(str(recorder))
        path.write_text(_STAND_IN.format(python=python, recorder=script, name=name), encoding="utf-8")
        path.chmod(0o700)
    environment = {
        **os.environ,
        VARIABLE: str(record),
        "VERL_WIZARD_CAPTURE_BIN": str(stand_ins),
        "BASH_ENV": str(GUARD),
        # Should anything get through after all, it finds no GPU.
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{stand_ins}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    # Scripts write "$VIRTUAL_ENV/bin/python" and "$CONDA_PREFIX/bin/python" too.
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        environment[variable] = str(folder)
    environment["PYTHON"] = environment["PYTHON_BIN"] = "python3"
    return environment


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what the script left behind in its session, also jobs in process groups of their own (`set -m`)."""
    for _ in range(2):  # the second time for what was being forked the first time
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == process.pid:
                    os.kill(pid, signal.SIGKILL)
    process.wait()


def _read(record: Path) -> tuple[Call, ...]:
    try:
        lines = record.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    calls = (json.loads(line) for line in lines)
    return tuple(Call(call["name"], tuple(call["argv"]), call["folder"]) for call in calls)


def _as_trainer(call: Call) -> Call | None:
    """Return the call as verl's trainer sees it, None for any other: also through torchrun, uv, ray job submit, "
    "srun."""
    words = list(call.argv)
    for index, word in enumerate(words):
        starts_module = word == "-m" and index + 1 < len(words) and words[index + 1].startswith(_TRAINER)
        if starts_module or word.endswith(("main_ppo.py", "main_ppo_v0.py")):
            return Call(call.name, tuple(words[index:]), call.folder)
        # One argument that is a whole command line, as in `bash -c` or `srun … "python -m verl…"`.
        if " -m verl.trainer" in word or "main_ppo.py " in word:
            try:
                inner = shlex.split(word)
            except ValueError:
                continue
            return _as_trainer(Call(call.name, tuple(inner), call.folder))
    return None
