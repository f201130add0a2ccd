"""textual-serve behind an address that cannot be guessed."""

from __future__ import annotations

import errno
import socket
import sys

from aiohttp import web
from textual_serve.server import Server


class _Server(Server):
    """Everything lies below a secret path.

    textual-serve asks nobody who they are, and a web socket is open to every page of every site in the same browser,
    and a loopback port to every user of the machine: without the path, any of them could drive the wizard.
    """

    def __init__(self, command: str, host: str, port: int, secret: str) -> None:
        shown = f"[{host}]" if ":" in host else host
        super().__init__(command, host, port, title="verl-wizard", public_url=f"http://{shown}:{port}")
        self._secret = secret

    async def _make_app(self) -> web.Application:
        inner = await super()._make_app()
        outer = web.Application()
        outer.add_subapp(f"/{self._secret}", inner)
        return outer

    async def on_startup(self, app: web.Application) -> None:
        print(f"verl-wizard: open {self.public_url}/{self._secret}/ (ctrl+c ends)", file=sys.stderr, flush=True)


def serve(command: str, host: str, port: int, secret: str) -> None:
    """Serve until SIGINT or SIGTERM, a wizard a connection, each in a process of its own.

    Raises:
        OSError: the address cannot be had.
    """
    _refuse_taken(host, port)
    _Server(command, host, port, secret).serve()


def _refuse_taken(host: str, port: int) -> None:
    """Say so before anything is printed; aiohttp would do it in a traceback."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise OSError(error.errno or errno.EADDRINUSE, error.strerror) from error
