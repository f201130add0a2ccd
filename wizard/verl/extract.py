"""Reads the schema out of an unpacked or installed verl: composed defaults, parsed interpolations, dataclass fields.

Runs in the target interpreter too (`python _target_entry.py wizard.verl.extract`), so it needs only the standard
library and what verl itself depends on: hydra-core and omegaconf. verl is read, never imported.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from wizard.probe.answer import answer, end_with_asker
from wizard.verl.interpolation import parse_interpolation

CONFIG_FOLDER = Path("trainer", "config")
CONFIG_NAME = "ppo_trainer"


def extract(package: Path, version: str) -> dict[str, Any]:
    """Return the schema of the verl package in the folder `package`, as plain JSON data.

    `defaults` is the composed `ppo_trainer` configuration with its interpolations unresolved, `interpolations`
    holds each of those strings parsed by OmegaConf's own grammar, `dataclasses` the fields of every `_target_`
    class, `config_files` the names a user's file must not have (verl's own would win, see `--config-dir`).
    """
    folder = package / CONFIG_FOLDER
    with initialize_config_dir(str(folder.resolve()), version_base=None):
        defaults = OmegaConf.to_container(compose(CONFIG_NAME), resolve=False)
    assert isinstance(defaults, dict)
    strings = {value for value in _leaves(defaults) if isinstance(value, str) and "${" in value}
    targets = sorted(set(_targets(defaults)))
    return {
        "version": version,
        "config_files": sorted(path.stem for path in folder.glob("*.yaml")),
        "groups": sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"),
        "defaults": defaults,
        "interpolations": {text: parse_interpolation(text) for text in sorted(strings)},
        "dataclasses": _dataclass_fields(package, targets),
    }


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for child in value.values():
            yield from _leaves(child)
    elif isinstance(value, list):
        for child in value:
            yield from _leaves(child)
    else:
        yield value


def _targets(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "_target_" in value:
            yield value["_target_"]
        for child in value.values():
            yield from _targets(child)


def _dataclass_fields(package: Path, targets: list[str]) -> dict[str, dict[str, list[Any]]]:
    """Return `{target: {field: [annotation, default source or None]}}`, inherited fields included."""
    classes: dict[str, list[tuple[str, ast.ClassDef]]] = {}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "@dataclass" not in source and "BaseConfig" not in source:
            continue
        module = ".".join(("verl", *path.relative_to(package).with_suffix("").parts))
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append((module, node))

    def find(name: str, near: str) -> tuple[str, ast.ClassDef] | None:
        def shared(module: str) -> int:
            return sum(1 for _ in iter_common(module.split("."), near.split(".")))

        options = classes.get(name, [])
        return max(options, key=lambda option: shared(option[0])) if options else None

    def fields(name: str, near: str) -> dict[str, list[Any]]:
        found = find(name, near)
        if found is None:
            return {}
        module, node = found
        result: dict[str, list[Any]] = {}
        for base in node.bases:
            result.update(fields(ast.unparse(base).split(".")[-1], module))
        for entry in node.body:
            if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
                annotation = ast.unparse(entry.annotation)
                if not entry.target.id.startswith("_") and "ClassVar" not in annotation:
                    result[entry.target.id] = [annotation, ast.unparse(entry.value) if entry.value else None]
        return result

    return {target: fields(target.rsplit(".", 1)[1], target.rsplit(".", 1)[0]) for target in targets}


def iter_common(left: list[str], right: list[str]) -> Iterator[str]:
    """Yield the leading elements that both lists share."""
    for one, other in zip(left, right, strict=False):
        if one != other:
            return
        yield one


def installed_package() -> tuple[Path, str]:
    """Return the folder and version of the verl installed in this interpreter, without importing it.

    Raises:
        ModuleNotFoundError: verl is not installed.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("verl is not installed in this interpreter")
    package = Path(next(iter(spec.submodule_search_locations)))
    version_file = package / "version" / "version"
    if version_file.is_file():
        return package, version_file.read_text(encoding="utf-8").strip()
    return package, importlib.metadata.version("verl")


def main(arguments: list[str]) -> int:
    """Answer with the schema of the installed verl; exit 3 when there is none."""
    argparse.ArgumentParser(prog="wizard.verl.extract").parse_args(arguments)
    end_with_asker()
    try:
        package, version = installed_package()
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
        return 3
    answer(extract(package, version))
    return 0
