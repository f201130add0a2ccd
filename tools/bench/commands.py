"""Seconds and memory of `check`, `estimate` and `inspect`, whole processes in turns with those of peers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from timeit import Timer

import psutil

from tools.bench.results import Result, Spread
from tools.bench.wizard_terminal import MODEL, WIZARD, generate
from wizard.memory import predict
from wizard.model.catalog import preset_config
from wizard.plan_file import FILE_NAME, load_plan
from wizard.rules import check_plan

POLL_SECONDS = 0.02
PEERS = (sys.executable, str(Path(__file__).with_name("peers.py")))
MIXTURE = "Qwen/Qwen3-30B-A3B"
MB = 1e6


@dataclass(frozen=True)
class Taken:
    """What one process took, its children with it."""

    seconds: float
    resident_bytes: int
    """The most that all its processes held at one moment."""


def take(argv: Sequence[str], folder: Path) -> Taken:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed; with findings, `check` ends with 1 as it should.
    """
    started, largest = time.perf_counter(), 0
    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        here = psutil.Process(process.pid)
        while process.poll() is None:
            largest = max(largest, _resident_bytes(here))
            time.sleep(POLL_SECONDS)
        seconds = time.perf_counter() - started
        if process.returncode not in (0, 1):
            assert process.stderr is not None
            raise RuntimeError(f"{argv} ended with {process.returncode}: {process.stderr.read().decode()[-2000:]}")
    return Taken(seconds, largest)


def _resident_bytes(process: psutil.Process) -> int:
    total = 0
    try:
        for each in (process, *process.children(recursive=True)):
            total += each.memory_info().rss
    except psutil.Error:
        return total
    return total


def in_turns(rounds: int, folder: Path, *commands: Sequence[str]) -> list[list[Taken]]:
    """Run commands in turns, so that a busy moment meets all of them."""
    taken: list[list[Taken]] = [[] for _ in commands]
    for _ in range(rounds):
        for command, found in zip(commands, taken, strict=True):
            found.append(take(command, folder))
    return taken


def _seconds(taken: Sequence[Taken]) -> float:
    return Spread([each.seconds for each in taken]).median


def _memory(taken: Sequence[Taken]) -> float:
    return Spread([each.resident_bytes / MB for each in taken]).median


def check_and_estimate(rounds: int = 5) -> list[Result]:
    """Measure both on a generated configuration."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder)
        _model_folder(folder / "model", MODEL)
        verl = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", name, "--config-name", "run"]
        check, compose, estimate, accelerate = in_turns(
            rounds,
            folder,
            [*WIZARD, "check", name],
            [*verl, "--cfg", "job"],
            [*WIZARD, "estimate", name],
            [*PEERS, "accelerate", str(folder / "model")],
        )
        plan = load_plan(folder / FILE_NAME)
    return [
        Result("commands", "check, whole process", _seconds(check), "s", None, "verl's main composing it, --cfg job",
               _seconds(compose), rounds),
        Result("commands", "estimate, whole process", _seconds(estimate), "s", None, "accelerate estimate-memory",
               _seconds(accelerate), rounds),
        Result("commands", "check, inside", _milliseconds(lambda: check_plan(plan)), "ms"),
        Result("commands", "estimate, inside", _milliseconds(lambda: predict.__wrapped__(plan)), "ms"),
    ]  # fmt: skip


def inspector(rounds: int = 3) -> list[Result]:
    """Measure the inspector on a dense model and a mixture of experts that are folders, and on a catalogued id."""
    found = []
    for title, model in (("dense 7B", MODEL), ("30B mixture of experts", MIXTURE)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _model_folder(folder, model)
            ours, floor, accelerate, catalogued = in_turns(
                rounds,
                folder,
                [*WIZARD, "inspect", name],
                [*PEERS, "transformers", name],
                [*PEERS, "accelerate", name],
                [*WIZARD, "inspect", model],
            )
        for peer, taken in (("transformers on meta", floor), ("accelerate estimate-memory", accelerate)):
            found += [
                Result("inspector", f"{title}, folder", _seconds(ours), "s", None, peer, _seconds(taken), rounds),
                Result(
                    "inspector", f"{title}, folder, memory", _memory(ours), "MB", None, peer, _memory(taken), rounds
                ),
            ]
        found.append(
            Result("inspector", f"{title}, catalogued", _seconds(catalogued), "s", None, "accelerate estimate-memory",
                   _seconds(accelerate), rounds, f"{_memory(catalogued):.0f} MB")
        )  # fmt: skip
    return found


def _model_folder(folder: Path, model: str) -> None:
    """Write a folder with nothing but the model's config.json, which no catalogue knows."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(preset_config(model)))


def _milliseconds(function: Callable[[], object]) -> float:
    function()
    return min(Timer(function).repeat(repeat=5, number=5)) / 5 * 1e3
