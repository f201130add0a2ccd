"""Writes `wizard/verl/schemas/VERSION.json` from verl's released wheels.

    python tools/extract_schema.py            # the newest patch of every supported minor version, from PyPI
    python tools/extract_schema.py 0.9.1 …    # these versions

Needs hydra-core and omegaconf, and pip for the download. Nothing of verl is imported or run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from wizard.verl.extract import extract

MINORS = ("0.6.*", "0.7.*", "0.8.*", "0.9.*")
SCHEMAS = Path(__file__).resolve().parent.parent / "wizard" / "verl" / "schemas"


def main(requested: list[str]) -> int:
    """Download each wheel, read its schema, write it."""
    for specifier in requested or MINORS:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder, f"verl=={specifier}"],
                check=True,
            )
            wheel = next(Path(folder).glob("verl-*.whl"))
            version = wheel.name.split("-")[1]
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            schema = extract(Path(folder, "verl"), version)
        path = SCHEMAS / f"{version}.json"
        path.write_text(json.dumps(schema, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
