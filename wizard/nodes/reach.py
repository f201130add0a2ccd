"""Whether another machine can be talked to. Standard library only."""

from __future__ import annotations

import socket
import time

CONNECT_SECONDS = 5.0


def cannot_connect(host: str, port: int) -> str:
    """Return why no connection comes about; empty when one does."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        return str(error)
    return ""


def wait_for(host: str, port: int, seconds: float) -> str:
    """Return why no connection comes about within `seconds`; empty as soon as one does."""
    deadline = time.monotonic() + seconds
    while (problem := cannot_connect(host, port)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return problem
