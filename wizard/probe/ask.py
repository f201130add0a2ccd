"""Asks the target interpreter a question in a subprocess that cannot hang, flood or outlive the wizard."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from wizard.probe.answer import MARK
from wizard.target import target_command

_OUTPUT_LIMIT_BYTES = 4 << 20
_LOOK_SECONDS = 0.2
"""How often a waiting reader looks whether it was stopped."""
_TAIL_CHARACTERS = 300


class NoAnswer(Exception):
    """The target gave no report; the message is the person's."""


def ask(
    python: str,
    module: str,
    arguments: Sequence[str] = (),
    *,
    timeout_seconds: float,
    stop: threading.Event | None = None,
) -> Any:
    """Run `module.main(arguments)` under `python` and return what it gave to `answer`.

    The process runs in a session of its own, which is killed when this returns.

    Raises:
        NoAnswer: the interpreter cannot be started, ended, hung or printed something else; or `stop` was set.
    """
    command = target_command(python, module, arguments)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NoAnswer(f"{command[0]} cannot be started: {reason}") from error
    with process:
        try:
            output = _read(process, timeout_seconds, stop or threading.Event(), command[0])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    text = output.decode("utf-8", "replace")
    _, marked, rest = text.rpartition(MARK)
    if marked:
        try:
            return json.loads(rest.partition("\n")[0])
        except json.JSONDecodeError as error:
            raise NoAnswer(f"{command[0]} gave a broken report{_tail(text)}") from error
    if len(output) >= _OUTPUT_LIMIT_BYTES:
        raise NoAnswer(f"{command[0]} printed {_OUTPUT_LIMIT_BYTES >> 20} MiB without a report{_tail(text)}")
    raise NoAnswer(_without_report(command[0], process.returncode, text))


def _read(process: subprocess.Popen[bytes], timeout_seconds: float, stop: threading.Event, python: str) -> bytes:
    """Return the output up to the end of the report, the end of the process, or the limit."""
    assert process.stdout is not None
    mark = MARK.encode()
    deadline = time.monotonic() + timeout_seconds
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(output) < _OUTPUT_LIMIT_BYTES:
            if stop.is_set():
                raise NoAnswer("stopped")
            if time.monotonic() > deadline:
                said = _tail(output.decode("utf-8", "replace"))
                raise NoAnswer(f"{python} gave no answer within {timeout_seconds:g} s{said}")
            if not selector.select(_LOOK_SECONDS):
                continue
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            output += chunk
            if not chunk:
                # The pipe closes a moment before the process has ended: its exit code is part of the answer.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(_LOOK_SECONDS, deadline - time.monotonic()))
                break
            if b"\n" in output[max(0, output.rfind(mark)) :] and mark in output:
                break
    return bytes(output)


def _without_report(python: str, code: int | None, text: str) -> str:
    if code is not None and code < 0:
        return f"{python} died of {signal.Signals(-code).name}{_tail(text)}"
    if code:
        return f"{python} ended with exit code {code}{_tail(text)}"
    return f"{python} is not a Python that can run the probe{_tail(text)}"


def _tail(text: str) -> str:
    """Return the end of the output as a clause; control characters would reach the terminal otherwise."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return f"; its last output: {clean[-_TAIL_CHARACTERS:]}" if clean else ""
