"""The inspector as a warm process beside the TUI: torch and transformers are imported before they are needed."""

from __future__ import annotations

import asyncio
import contextlib

from wizard.facts import Architecture
from wizard.model.errors import ModelError
from wizard.model.protocol import MODULE, TIME_LIMIT_SECONDS, architecture_from, ended, request_line
from wizard.model.resolve import known
from wizard.target import target_command

_ANSWER_LIMIT_BYTES = 64 << 20
_STDERR_TAIL_BYTES = 4096


class InspectorProcess:
    """Answers one question at a time; started when first asked for or warmed, and again after it died.

    The process ends by itself when its stdin closes, so it cannot outlive the wizard.
    """

    def __init__(self, python: str = "") -> None:
        self.python = python
        """The target interpreter; when it is changed, the next question starts another process."""
        self._of = python
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = b""
        self._reader: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def warm(self) -> None:
        """Start the process and wait until it is ready to answer; failures show at the first question."""
        async with self._turn:
            with contextlib.suppress(ModelError, OSError, ValueError, asyncio.TimeoutError):
                await self._started()

    async def resolve(
        self, model: str, *, revision: str = "", trust_remote_code: bool = False, role: str = "actor"
    ) -> Architecture:
        """Like `wizard.model.resolve.resolve_model`, without the start-up cost.

        Raises:
            ModelError: as there.
        """
        if not model.strip():
            raise ModelError("model.id is empty. Give a folder, a Hugging Face id, a preset, or `tiny`.")
        found = known(model, role)
        if found is not None:
            return found
        async with self._turn:
            line = ""
            try:
                line = await self._ask(request_line(model, revision, trust_remote_code, role), model)
            except asyncio.TimeoutError as error:
                raise ModelError(f"{model}: no answer within {TIME_LIMIT_SECONDS:.0f} s.") from error
            except (OSError, ValueError) as error:  # a line beyond the limit is a ValueError
                raise ended(self.python, model, f"{self._stderr_text()}\n{error}") from error
            finally:
                # An answer that nobody waits for any more would be taken for the next one. And foreign code stays in
                # a process: it would colour later answers, and its files would not be read again.
                if not line or trust_remote_code:
                    await self._stop()
            if not line:
                raise ended(self.python, model, self._stderr_text())
        return architecture_from(line, model)

    async def _ask(self, request: str, model: str) -> str:
        """Return the answer's line; empty when the process ended instead."""
        process = await self._started(model)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request.encode())
        await process.stdin.drain()
        return (await asyncio.wait_for(process.stdout.readline(), TIME_LIMIT_SECONDS)).decode("utf-8", "replace")

    async def close(self) -> None:
        """End the process, even in the middle of a question."""
        await self._stop()

    async def _started(self, model: str = "inspector") -> asyncio.subprocess.Process:
        if self._of != self.python:
            await self._stop()
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._of = self.python
        command = target_command(self.python, MODULE)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_ANSWER_LIMIT_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            raise ModelError(f"{command[0]}: cannot be started: {error.strerror}. Check --python.") from error
        self._process = process
        self._stderr = b""
        self._reader = asyncio.create_task(self._drain(process))
        assert process.stdout is not None
        ready = b""
        try:
            ready = await asyncio.wait_for(process.stdout.readline(), TIME_LIMIT_SECONDS)
        finally:
            if not ready:
                await self._stop()
        if not ready:
            raise ended(self.python, model, self._stderr_text())
        return process

    async def _drain(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(_STDERR_TAIL_BYTES):
            self._stderr = (self._stderr + chunk)[-_STDERR_TAIL_BYTES:]

    def _stderr_text(self) -> str:
        return self._stderr.decode("utf-8", "replace")

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        if self._reader is not None:
            await self._reader
