"""What the target interpreter has installed, asked of it in subprocesses and judged row by row."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from wizard.probe.ask import NoAnswer, ask
from wizard.probe.cuda import TorchBuild, cuda_row
from wizard.probe.gpu_report import GpuReport
from wizard.probe.gpus import read_gpus
from wizard.probe.versions import (
    ORDER,
    PACKAGES,
    Installed,
    Row,
    State,
    broken,
    failed_rows,
    package_row,
    python_row,
    reinstall,
)

TIME_LIMIT_SECONDS = 120.0
"""Of each question: torch's first import from a network disk takes most of a minute."""

_MODULE = "wizard.probe.installed"


@dataclass(frozen=True)
class EnvironmentReport:
    """Rows in the order of `versions.ORDER`."""

    python: str
    """The target as it was asked for; empty means the interpreter the wizard runs in."""
    rows: tuple[Row, ...]

    @property
    def failed(self) -> bool:
        """Whether any row is FAIL."""
        return any(row.state is State.FAIL for row in self.rows)

    @property
    def versions(self) -> dict[str, str]:
        """Version by name, of what has one."""
        return {row.name: row.version for row in self.rows if row.version}


def read_environment(
    python: str = "",
    timeout_seconds: float = TIME_LIMIT_SECONDS,
    *,
    gpus: GpuReport | None = None,
    stop: threading.Event | None = None,
) -> EnvironmentReport:
    """Ask `python` what it has; a target that is absent, hangs or prints rubbish gives rows that say so.

    Args:
        python: the target interpreter; empty means this one.
        timeout_seconds: limit of each of the three questions: what is listed, torch, flash-attn.
        gpus: what torch's CUDA build is held against; read now when None.
        stop: set by another thread to give up.
    """
    report = gpus if gpus is not None else read_gpus(python, stop=stop)
    rows = {row.name: row for row in read_rows(python, report, timeout_seconds, stop)}
    return EnvironmentReport(python, tuple(rows[name] for name in ORDER))


def read_rows(
    python: str, gpus: GpuReport, timeout_seconds: float = TIME_LIMIT_SECONDS, stop: threading.Event | None = None
) -> Iterator[Row]:
    """Yield the rows of `ORDER` as they become known: metadata at once, imports after seconds."""
    names = [f"{package.name}={package.module}" for package in PACKAGES.values()]
    try:
        answer = ask(python, _MODULE, ["list", *names], timeout_seconds=timeout_seconds, stop=stop)
        installed = msgspec.convert(answer, Installed)
    except (NoAnswer, msgspec.ValidationError) as error:
        yield from failed_rows(str(error))
        return
    yield python_row(installed)
    for name in PACKAGES:
        if name not in ("torch", "flash-attn"):
            yield package_row(name, installed)
    yield from _torch_rows(python, gpus, installed, timeout_seconds, stop)
    yield _flash_row(python, installed, timeout_seconds, stop)


def _torch_rows(
    python: str, gpus: GpuReport, installed: Installed, timeout_seconds: float, stop: threading.Event | None
) -> Iterator[Row]:
    row = package_row("torch", installed)
    build = TorchBuild("torch is not installed")
    if "torch" in installed.versions:
        try:
            answer = ask(python, _MODULE, ["torch"], timeout_seconds=timeout_seconds, stop=stop)
            build = msgspec.convert(answer, TorchBuild)
        except (NoAnswer, msgspec.ValidationError) as error:
            build = TorchBuild(str(error))
        if build.error:
            row = broken(row, build.error, reinstall("torch", installed))
    yield row
    yield cuda_row(build, gpus, installed)


def _flash_row(python: str, installed: Installed, timeout_seconds: float, stop: threading.Event | None) -> Row:
    """Import flash-attn in a process of its own: a build against another torch may kill the interpreter."""
    row = package_row("flash-attn", installed)
    if "flash-attn" not in installed.versions:
        return row
    try:
        error = ask(python, _MODULE, ["import", "flash_attn"], timeout_seconds=timeout_seconds, stop=stop)["error"]
    except NoAnswer as unanswered:
        error = str(unanswered)
    return broken(row, error, reinstall("flash-attn", installed)) if error else row
