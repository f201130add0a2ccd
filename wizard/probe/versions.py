"""Judges what is installed in the target interpreter. Pure: facts in, rows out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from packaging.specifiers import SpecifierSet

from wizard.probe.requirements import Demand, demand, is_version, satisfies
from wizard.verl.schema import SchemaError, known_versions, recorded_version


class State(str, Enum):
    """How one row of the environment stands."""

    OK = "ok"
    WARN = "warn"
    """Part of the work is possible, or verl was released against another version."""
    FAIL = "fail"
    """Training or validation would stop."""


@dataclass(frozen=True)
class Row:
    """One line of the environment's table."""

    name: str
    version: str
    """Empty when absent or unknown."""
    state: State
    reason: str
    install: str = ""
    """The command that puts it right; empty when nothing has to be installed."""


@dataclass(frozen=True)
class Installed:
    """What `wizard.probe.installed list` answers."""

    python: str
    executable: str
    has_pip: bool
    versions: dict[str, str]
    """Version by distribution; empty for a module on the path without metadata, absent for what is not there."""
    verl_requires: list[str]

    def command(self, *requirements: str) -> str:
        """Return the shell command that installs `requirements` into the target."""
        tool = [self.executable, "-m", "pip", "install"]
        if not self.has_pip:
            tool = ["uv", "pip", "install", "--python", self.executable]
        return shlex.join([*tool, *requirements])


@dataclass(frozen=True)
class Package:
    """A distribution the environment's table has a row for."""

    name: str
    module: str
    purpose: str
    minimum: str = ""
    """Oldest version this program works with, whatever verl says."""


PACKAGES = {
    package.name: package
    for package in (
        Package("torch", "torch", "training and validation", ">=2.4"),
        Package("transformers", "transformers", "models", ">=4.40"),
        Package("verl", "verl", "the training itself; validation runs without it"),
        Package("vllm", "vllm", "the rollout (vllm or sglang)"),
        Package("sglang", "sglang", "the rollout (vllm or sglang)"),
        Package("flash-attn", "flash_attn", "verl's default attention, packed sequences and Ulysses"),
        Package("ray", "ray", "verl's workers"),
        Package("hydra-core", "hydra", "verl's configuration"),
        Package("numpy", "numpy", "verl's batches"),
        Package("tensordict", "tensordict", "verl's batches"),
        Package("peft", "peft", "LoRA"),
    )
}
ENGINES = ("vllm", "sglang")
ORDER = ("python", "torch", "cuda", *(name for name in PACKAGES if name != "torch"))
"""Rows in the order they are shown."""

_OLDEST_PYTHON = SpecifierSet(">=3.10")


def python_row(installed: Installed) -> Row:
    """Judge the interpreter itself."""
    if satisfies(installed.python, _OLDEST_PYTHON):
        return Row("python", installed.python, State.OK, installed.executable)
    reason = f"{installed.executable}: verl needs Python{_OLDEST_PYTHON}. Choose another with --python."
    return Row("python", installed.python, State.FAIL, reason)


def package_row(name: str, installed: Installed) -> Row:
    """Judge one distribution by its metadata: this program's minimum, then verl's demand, then verl's pins."""
    package = PACKAGES[name]
    wanted = demand(installed.verl_requires, name, installed.python)
    install = installed.command(_requirement(package, wanted))
    version = installed.versions.get(name)
    if version is None:
        return _absent(package, wanted, installed, install)
    if not is_version(version):
        seen = f"version {version!r} cannot be compared" if version else "on the path, without version metadata"
        return Row(name, version, State.WARN, seen, install)
    if package.minimum and not satisfies(version, SpecifierSet(package.minimum)):
        return Row(name, version, State.FAIL, f"{package.purpose}: needs {name}{package.minimum}", install)
    verl = installed.versions.get("verl", "")
    if wanted.needed is not None and not satisfies(version, wanted.needed):
        return Row(name, version, State.FAIL, f"verl {verl} requires {name}{wanted.needed}", install)
    if name == "verl":
        return _verl_row(version)
    if wanted.needed is None and wanted.pins and not any(satisfies(version, pin) for pin in wanted.pins):
        pins = " or ".join(f"{name}{pin}" for pin in wanted.pins)
        return Row(name, version, State.WARN, f"verl {verl} was released with {pins}; others are untested", install)
    return Row(name, version, State.OK, package.purpose)


def broken(row: Row, error: str, install: str = "") -> Row:
    """Return the row of a package whose metadata is there but whose import fails."""
    return Row(row.name, row.version, State.FAIL, f"its import fails: {error}", install or row.install)


def failed_rows(reason: str, names: Sequence[str] = ORDER) -> list[Row]:
    """Return the rows of a target that gave no answer: the interpreter's failure, and nothing known beyond it."""
    return [
        Row(name, "", State.FAIL if name == "python" else State.WARN, reason if name == "python" else "not known")
        for name in names
    ]


def reinstall(name: str, installed: Installed) -> str:
    """Return the command that builds a broken package anew against the torch that is there."""
    wanted = _requirement(PACKAGES[name], demand(installed.verl_requires, name, installed.python))
    return installed.command("--force-reinstall", "--no-deps", *_build_flags(name), wanted)


def _absent(package: Package, wanted: Demand, installed: Installed, install: str) -> Row:
    other = next((engine for engine in ENGINES if engine in installed.versions), "")
    if package.name in ENGINES and other:
        return Row(package.name, "", State.OK, f"not installed, and not needed: {other} does the rollout")
    if package.minimum or wanted.needed is not None:
        return Row(package.name, "", State.FAIL, f"not installed; needed for {package.purpose}", install)
    if _build_flags(package.name):
        install = installed.command(*_build_flags(package.name), _requirement(package, wanted))
    return Row(package.name, "", State.WARN, f"not installed; needed for {package.purpose}", install)


def _verl_row(version: str) -> Row:
    try:
        recorded_version(version)
    except SchemaError:
        known = ", ".join(known_versions())
        return Row("verl", version, State.WARN, f"its keys are not recorded here (recorded: {known}): unchecked")
    return Row("verl", version, State.OK, PACKAGES["verl"].purpose)


def _build_flags(name: str) -> tuple[str, ...]:
    """flash-attn compiles against the torch that is installed, which an isolated build would not see."""
    return ("--no-build-isolation",) if name == "flash-attn" else ()


def _requirement(package: Package, wanted: Demand) -> str:
    specifier = wanted.needed or (wanted.pins[0] if wanted.pins else SpecifierSet(package.minimum))
    return f"{package.name}{specifier}"
