"""Starts a validation run and streams what its ranks tell. Runs in the wizard's process, free of torch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

from wizard.nodes.remote_stacks import ask_driver
from wizard.target import target_command
from wizard.validation.events import Event
from wizard.validation.launch import Launch, RayCluster, Torchrun
from wizard.validation.loss import KernelKills, explain_loss
from wizard.validation.rank_environment import rank_variables
from wizard.validation.reporter import heartbeat_file
from wizard.validation.run_folder import SPEC, asked_to_end, new_run_folder, own, write_result
from wizard.validation.signs import EventReader, Heartbeats
from wizard.validation.spec import RankSpec, write_spec
from wizard.validation.stacks import ask_stacks
from wizard.validation.verdict import RunState, Verdict, with_stacks

POLL_SECONDS, BREATH_SECONDS = 0.1, 0.02
LOG_TAIL_BYTES = 64 << 10
END_SECONDS = 10.0
"""How long the agent may take to end its processes; it needs `agent.GRACE_SECONDS` for those that resist."""
HERE = Torchrun()
RUN_VARIABLE = "VERL_WIZARD_RUN"
"""Set to the run's folder in every process of a run, so that none can hide."""


class Run:
    """One validation run: its processes, its event stream, its verdict."""

    def __init__(
        self,
        spec: RankSpec,
        folder: Path,
        process: asyncio.subprocess.Process,
        launch: Launch,
        lock: IO[bytes],
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.verdict: Verdict | None = None
        self.ranks = launch.ranks(spec)
        """Ranks that are heard of here."""
        self.state = RunState(self.ranks, spec.step_limit_seconds, time.monotonic())
        self._launch = launch
        self._process = process
        self._lock = lock
        self._cancelled_at: float | None = None
        self._kernel: KernelKills | None = None
        self._reader = EventReader(folder, self.ranks)
        self._heartbeats = Heartbeats(folder, self.ranks)

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
        lock = own(folder)
        try:
            spec_file = folder / SPEC
            write_spec(spec, spec_file)
            with (folder / "log.txt").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *target_command(python, "wizard.validation.agent", launch.argv(spec, python, spec_file, folder)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={
                        **os.environ,
                        RUN_VARIABLE: str(folder.resolve()),
                        **rank_variables(spec.device, spec.world_size, folder),
                    },
                )
        except BaseException:
            lock.close()
            raise
        return cls(spec, folder, process, launch, lock)

    async def events(self) -> AsyncIterator[Event]:
        """Yield events of all ranks as they come, until there is a verdict and all processes are gone."""
        try:
            while self.verdict is None:
                ended = self._process.returncode is not None
                for event in self._reader.read():
                    if not isinstance(self._launch, RayCluster):
                        self._kernel = self._kernel or KernelKills(self._process.pid)
                    self.state.feed(event, time.monotonic())
                    yield event
                if ended and self._reader.caught_up:
                    assert self._process.returncode is not None
                    tail, cancelled = self.log_tail(), self._cancelled_at is not None
                    verdict = self.state.ended(self._process.returncode, tail, cancelled=cancelled)
                    self.verdict = explain_loss(verdict, self.folder, self._kernel)
                elif not ended:
                    self.verdict = await self._so_far()
                if self.verdict is None and not self._reader.caught_up:
                    # What waits is read soon, but the display has its turn in between.
                    await asyncio.sleep(BREATH_SECONDS)
                elif self.verdict is None and not ended:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(asyncio.shield(self._process.wait()), POLL_SECONDS)
        finally:
            self.verdict = self.verdict or Verdict("cancelled", self.state.step)
            await self._end()
            write_result(self.folder, self.verdict)
            self._lock.close()

    async def _so_far(self) -> Verdict | None:
        """Return the verdict of a run whose processes are still there; None while it goes on."""
        now = time.monotonic()
        if self._cancelled_at is None:
            if asked_to_end(self.folder):
                await self.cancel()
                return None
            verdict = self.state.verdict(now, self._heartbeats.silent_seconds(now))
            return verdict and explain_loss(await self._located(verdict), self.folder, self._kernel)
        return Verdict("cancelled", self.state.step) if now - self._cancelled_at > END_SECONDS else None

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
        self._cancelled_at = self._cancelled_at or time.monotonic()
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
        if self._process.returncode:
            # An agent that was killed ends nobody: what the ranks have started themselves would stay.
            await asyncio.to_thread(_kill_all_of, self.folder)


def _kill_all_of(folder: Path) -> None:
    """Kill every process that carries a run's mark in its environment."""
    import psutil

    mark = str(folder.resolve())
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_VARIABLE) == mark:
                process.kill()
