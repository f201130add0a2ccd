"""The Ray actor that keeps one rank: starts the worker beside itself and hands on what it writes.

Runs on the rank's node, in Ray's interpreter there; standard library and Ray only. The worker is the same as under
torchrun and a process of its own, so that it can be ended whatever it is stuck in. It dies with the actor
(`PR_SET_PDEATHSIG`).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from wizard.nodes.job import Job
from wizard.nodes.reach import cannot_connect
from wizard.nodes.requirements import RankFacts
from wizard.target import ENTRY
from wizard.validation.rank_environment import NODE_VARIABLE, rank_variables
from wizard.validation.reporter import event_file, heartbeat_file
from wizard.validation.stacks import RankStack, ask_stacks


@dataclass(frozen=True)
class News:
    """What a rank's process has written since the last call, and how it is."""

    events: bytes
    log: bytes
    silent_seconds: float | None
    """Since its last sign of life, by its own node's clock; None before the first."""
    exit_code: int | None


class RayRank:
    """One rank. Every method returns at once, but for `reach` and `stacks`."""

    def __init__(self, job: Job, rank: int, node: str) -> None:
        self._job, self._rank, self._node = job, rank, node
        self._folder = Path(tempfile.mkdtemp(prefix="verl-wizard-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def facts(self) -> RankFacts:
        """Return what this interpreter has, without importing torch."""
        try:
            version = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            version = ""
        return RankFacts(self._node, version, not self._job.model or os.path.isdir(self._job.model))

    def listen(self) -> tuple[str, int]:
        """Open a free port for the rendezvous and return where it is."""
        import ray

        address = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        return address, self._socket.getsockname()[1]

    def reach(self, address: str, port: int) -> str:
        """Return why the rendezvous cannot be reached from here; empty when it can."""
        return cannot_connect(address, port)

    def start(self, address: str, port: int, variables: dict[str, str]) -> None:
        """Start the worker."""
        if self._socket is not None:
            self._socket.close()
        spec_file = self._folder / "spec.json"
        spec_file.write_text(self._job.spec, encoding="utf-8")
        environment = {
            **os.environ,
            **variables,
            **rank_variables(self._job.device, self._job.world_size, self._folder),
            NODE_VARIABLE: self._node,
            "RANK": str(self._rank),
            "WORLD_SIZE": str(self._job.world_size),
            # Ray shows every rank its own GPU only.
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
        }
        with (self._folder / "log.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(ENTRY), self._job.worker, str(spec_file), str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def news(self, events_from: int, log_from: int) -> News:
        """Return what is new after so many bytes of each: a call whose answer is lost loses nothing."""
        # The code first: what the process wrote before it ended is then read too.
        code = self._process.poll() if self._process is not None else None
        silent = None
        with contextlib.suppress(OSError):
            silent = max(0.0, time.time() - heartbeat_file(self._folder, self._rank).stat().st_mtime)
        events = _read(event_file(self._folder, self._rank), events_from)
        return News(events, _read(self._folder / "log.txt", log_from), silent, code)

    def stacks(self, step: str) -> RankStack:
        """Ask the worker where it is."""
        pid = self._process.pid if self._process is not None else 0
        return ask_stacks(self._folder, {self._rank: pid}, {self._rank: step})[0]

    def close(self) -> None:
        """End the worker and leave nothing behind."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read()
    except OSError:
        return b""
