"""Runs in the target interpreter and tells what is installed there. Standard library only.

`list` reads metadata; `torch` and `import NAME` import for real, because a broken build shows only then.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

from wizard.probe.answer import answer, end_with_asker


def main(arguments: Sequence[str]) -> int:
    """Answer one question: `list DISTRIBUTION=MODULE…`, `torch` or `import NAME`."""
    end_with_asker()
    question, *names = arguments
    if question == "list":
        answer(_listed(names))
    elif question == "torch":
        answer(_torch())
    else:
        answer(_imported(names[0]))
    return 0


def _listed(names: Sequence[str]) -> dict[str, Any]:
    pairs = [name.partition("=")[::2] for name in names]
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "has_pip": importlib.util.find_spec("pip") is not None,
        "versions": {name: version for name, module in pairs if (version := version_of(name, module)) is not None},
        "verl_requires": _requires("verl"),
    }


def version_of(distribution: str, module: str) -> str | None:
    """Return the version; empty for a module that lies on the path without metadata, None for what is absent."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.origin:
            return None
        # verl run from a checkout on PYTHONPATH keeps its version in a file of its own.
        file = os.path.join(os.path.dirname(spec.origin), "version", "version")
        if not os.path.isfile(file):
            return ""
        with open(file, encoding="utf-8") as stream:
            return stream.read().strip()


def _requires(distribution: str) -> list[str]:
    try:
        return importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _imported(name: str) -> dict[str, str]:
    """Import a module; whatever it raises (also SystemExit of a bad build's guard) is the answer."""
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": "", "version": str(getattr(module, "__version__", ""))}


def _torch() -> dict[str, Any]:
    found: dict[str, Any] = dict(_imported("torch"))
    if not found["error"]:
        import torch

        found |= {
            "cuda": torch.version.cuda or "",
            "hip": getattr(torch.version, "hip", None) or "",
            "cuda_available": torch.cuda.is_available(),
            "architectures": torch.cuda.get_arch_list() if torch.version.cuda else [],
        }
    return found
