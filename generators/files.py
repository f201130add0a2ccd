"""Which files a Plan becomes, and how they reach the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from generators.cluster import nodes_of, ray_node_sh, rayjob_yaml, slurm_sh
from generators.run_sh import run_sh
from generators.run_yaml import run_yaml
from generators.split_roles import MODULE, split_roles_py
from wizard.files import FileExists, write_atomic
from wizard.plan import Plan
from wizard.plan_file import FILE_NAME, plan_to_yaml

EXECUTABLE_MODE = 0o755


def render(plan: Plan) -> dict[str, str]:
    """Return every file of the Plan, name → text. The same Plan gives the same bytes."""
    files = {"run.yaml": run_yaml(plan), "run.sh": run_sh(plan)}
    launcher = split_roles_py(plan)
    if launcher:
        files[f"{MODULE}.py"] = launcher
    if nodes_of(plan) > 1:
        travelling = dict(files)
        files["ray_node.sh"] = ray_node_sh(plan)
        files["slurm.sh"] = slurm_sh(plan)
        files["rayjob.yaml"] = rayjob_yaml(plan, travelling)
    return {**files, FILE_NAME: plan_to_yaml(plan)}


def write(files: Mapping[str, str], folder: Path, *, overwrite: bool = False) -> list[Path]:
    """Write the files into `folder`, which is made if needed; nothing is written when one may not be replaced.

    Raises:
        FileExists: a file of that name with other content is there and `overwrite` is False.
        OSError: the folder cannot be made or written.
    """
    targets = {folder / name: text for name, text in files.items()}
    for path, text in targets.items():
        if not overwrite and path.exists() and path.read_bytes() != text.encode():
            raise FileExists(path)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in targets.items():
        mode = EXECUTABLE_MODE if path.suffix == ".sh" else 0o644
        write_atomic(path, text, overwrite=overwrite, keep_previous=True, mode=mode)
    return list(targets)
