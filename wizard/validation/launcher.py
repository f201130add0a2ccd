"""Starts a validation run and streams what its ranks tell. Runs in the wizard's process, free of torch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from wizard.nodes.remote_stacks import ask_driver
from wizard.state import state_folder
from wizard.target import target_command
from wizard.validation.events import Event, parse_line
from wizard.validation.launch import Launch, RayCluster, Torchrun
from wizard.validation.loss import KernelKills, explain_loss
from wizard.validation.rank_environment import rank_variables
from wizard.validation.reporter import event_file, heartbeat_file
from wizard.validation.spec import RankSpec, write_spec
from wizard.validation.stacks import ask_stacks
from wizard.validation.verdict import RunState, Verdict, with_stacks

POLL_SECONDS = 0.1
LOG_TAIL_BYTES = 64 << 10
END_SECONDS = 10.0
"""How long the agent may take to end its processes; it needs `agent.GRACE_SECONDS` for those that resist."""
HERE = Torchrun()
RUN_VARIABLE = "VERL_WIZARD_RUN"
"""Set in every process of a run, so that none can hide."""


def new_run_folder(parent: Path | None = None) -> Path:
    """Make and return a folder for one run."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    folder = (parent or state_folder() / "runs") / name
    folder.mkdir(parents=True, mode=0o700)
    return folder


class Run:
    """One validation run: its processes, its event stream, its verdict."""

    def __init__(self, spec: RankSpec, folder: Path, process: asyncio.subprocess.Process, launch: Launch) -> None:
        self.spec = spec
        self.folder = folder
        self.verdict: Verdict | None = None
        self.ranks = launch.ranks(spec)
        """Ranks that are heard of here."""
        self.state = RunState(self.ranks, spec.step_limit_seconds, time.monotonic())
        self._launch = launch
        self._process = process
        self._cancelled = False
        self._kernel: KernelKills | None = None
        self._offsets = dict.fromkeys(self.ranks, 0)
        self._rests = dict.fromkeys(self.ranks, "")

    @classmethod
    async def start(
        cls, spec: RankSpec, python: str = "", folder: Path | None = None, launch: Launch = HERE
    ) -> Run:
        """Start torchrun, or what takes its place, in the target interpreter, in a session of its own.

        Raises:
            NodeError: the ranks cannot be spread over the nodes.
            OSError: the folder cannot be made, or the interpreter cannot be started.
        """
        folder = folder or new_run_folder()
        spec_file = folder / "spec.json"
        write_spec(spec, spec_file)
        with (folder / "log.txt").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *target_command(python, "wizard.validation.agent", launch.argv(spec, python, spec_file, folder)),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, RUN_VARIABLE: folder.name, **rank_variables(spec.device, spec.world_size, folder)},
            )
        return cls(spec, folder, process, launch)

    async def events(self) -> AsyncIterator[Event]:
        """Yield events of all ranks as they come, until there is a verdict and all processes are gone."""
        try:
            while self.verdict is None:
                ended = self._process.returncode is not None
                for event in self._new_events():
                    if not isinstance(self._launch, RayCluster):
                        self._kernel = self._kernel or KernelKills(self._process.pid)
                    self.state.feed(event, time.monotonic())
                    yield event
                if ended:
                    assert self._process.returncode is not None
                    tail = self.log_tail()
                    verdict = self.state.ended(self._process.returncode, tail, cancelled=self._cancelled)
                    self.verdict = explain_loss(verdict, self.folder, self._kernel)
                elif not self._cancelled:
                    now = self.state.verdict(time.monotonic(), self._silence())
                    self.verdict = now and explain_loss(await self._located(now), self.folder, self._kernel)
                if self.verdict is None:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(asyncio.shield(self._process.wait()), POLL_SECONDS)
        finally:
            await self._end()
            self._write_result()

    async def _located(self, verdict: Verdict) -> Verdict:
        """Add where every rank is, while the ranks are still there to be asked."""
        if not verdict.hung:
            return verdict
        steps = {rank: state.step for rank, state in self.state.ranks.items()}
        if isinstance(self._launch, RayCluster):
            return with_stacks(verdict, await asyncio.to_thread(ask_driver, self.folder, steps))
        pids = {rank: self._pid(rank) for rank in self.ranks}
        return with_stacks(verdict, await asyncio.to_thread(ask_stacks, self.folder, pids, steps))

    def _pid(self, rank: int) -> int:
        try:
            return int(heartbeat_file(self.folder, rank).read_text())
        except (OSError, ValueError):
            return 0

    async def cancel(self) -> None:
        """End the run; `events` then ends with the verdict `cancelled`."""
        self._cancelled = True
        self._let_go()

    def log_tail(self) -> str:
        """Return the end of what the processes printed."""
        try:
            with (self.folder / "log.txt").open("rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - LOG_TAIL_BYTES))
                return stream.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def _let_go(self) -> None:
        # The agent ends everything when its stdin ends.
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _end(self) -> None:
        self._let_go()
        if self._process.returncode is None:
            try:
                await asyncio.wait_for(self._process.wait(), END_SECONDS)
            except asyncio.TimeoutError:
                # Then the kernel takes the agent's children with it (PR_SET_PDEATHSIG).
                self._process.kill()
                await self._process.wait()

    def _new_events(self) -> list[Event]:
        found: list[Event] = []
        for rank in self.ranks:
            try:
                with event_file(self.folder, rank).open("rb") as stream:
                    stream.seek(self._offsets[rank])
                    data = stream.read()
            except OSError:
                continue
            self._offsets[rank] += len(data)
            *lines, self._rests[rank] = (self._rests[rank] + data.decode("utf-8", "replace")).split("\n")
            found += [event for line in lines if (event := parse_line(line)) is not None]
        return sorted(found, key=lambda event: event.time)

    def _silence(self) -> dict[int, float]:
        """Seconds since each rank's heartbeat. Wall clock: a jump of it is capped by what has really passed."""
        silent: dict[int, float] = {}
        running = time.monotonic() - min(state.step_since for state in self.state.ranks.values())
        for rank in self.ranks:
            with contextlib.suppress(OSError):
                age = time.time() - heartbeat_file(self.folder, rank).stat().st_mtime
                silent[rank] = min(age, running)
        return silent

    def _write_result(self) -> None:
        if self.verdict is not None:
            with contextlib.suppress(OSError):
                text = json.dumps(msgspec.to_builtins(self.verdict) | {"sentence": self.verdict.sentence}, indent=1)
                (self.folder / "result.json").write_text(text, encoding="utf-8")
