"""Whether another machine can be talked to. Standard library only."""

from __future__ import annotations

import socket

CONNECT_SECONDS = 5.0


def cannot_connect(host: str, port: int) -> str:
    """Return why no connection comes about; empty when one does."""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        return str(error)
    return ""
