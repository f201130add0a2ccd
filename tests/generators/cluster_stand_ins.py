"""Programs that take the place of what this machine lacks, so that the generated scripts run as they are.

`srun` and `scontrol` for Slurm: a step's command is executed for real, here, whatever node it was meant for. A Python
that runs everything but verl's main, in whose place it tells what of Ray it sees.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

SRUN = """
options = {}
arguments = sys.argv[1:]
while arguments[0].startswith("--"):
    name, _, value = arguments.pop(0).partition("=")
    options[name] = value
with open(TOLD / "steps", "a") as steps:
    steps.write(json.dumps([options.get("--nodelist"), arguments]) + "\\n")
if "stop" in arguments:
    # Ray's own stop would end every cluster of this machine.
    for pid in (TOLD / "pids").read_text().split():
        os.kill(int(pid), signal.SIGTERM)
    sys.exit()
if "start" in arguments:
    with open(TOLD / "pids", "a") as pids:
        pids.write(f"{os.getpid()} ")
os.execvp(arguments[0], arguments)
"""
PYTHON = """
if sys.argv[1:3] != ["-m", "verl.trainer.main_ppo"]:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
import ray
from ray.util import placement_group
ray.init(log_to_driver=False)
nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
# What verl makes of a Plan without groups: a strictly packed group a node, three CPUs beside each GPU.
pools = [placement_group([{"CPU": 3, "GPU": 1}] * int(node["GPU"]), strategy="STRICT_PACK") for node in nodes]
ready = all(pool.wait(60) for pool in pools)
told = {"arguments": sys.argv[3:], "gpus": [node["GPU"] for node in nodes], "pools": ready,
        "cpus": [node["CPU"] for node in nodes]}
(TOLD / "main").write_text(json.dumps(told))
"""


class StandIns:
    """The programs, a folder for what they tell, and an environment in which they are found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Ray's sockets lie below it, whose paths have to be short.
        self.ray = Path(tempfile.mkdtemp(prefix="vw"))
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        self.python = self._program(folder / "a python's", PYTHON)
        self._program(bin_folder / "srun", SRUN)
        self._program(bin_folder / "scontrol", 'print("node1", "node2", sep="\\n")')
        self.environment = {
            **os.environ,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "RAY_TMPDIR": str(self.ray),
            "RAY_PORT": str(free_port()),
        }
        for name in ("SLURM_SUBMIT_DIR", "RAY_ADDRESS"):
            self.environment.pop(name, None)

    def _program(self, path: Path, text: str) -> Path:
        head = f"#!{sys.executable}\nimport json, os, signal, sys\nfrom pathlib import Path\n"
        path.write_text(f"{head}TOLD = Path({str(self.folder)!r})\n{text}")
        path.chmod(0o755)
        return path

    def main(self) -> Any:
        """Return what verl's main would have seen."""
        return json.loads((self.folder / "main").read_text())

    def steps(self) -> list[tuple[str, list[str]]]:
        """Return every step that Slurm was asked for: its node and its command."""
        return [tuple(json.loads(line)) for line in (self.folder / "steps").read_text().splitlines()]

    def processes(self) -> Iterator[psutil.Process]:
        """Yield the living processes that carry this environment."""
        for process in psutil.process_iter():
            try:
                if process.environ().get("RAY_TMPDIR") == str(self.ray) and process.status() != psutil.STATUS_ZOMBIE:
                    yield process
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue

    def close(self) -> None:
        """Kill what is left."""
        for process in list(self.processes()):
            process.kill()
        shutil.rmtree(self.ray, ignore_errors=True)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
