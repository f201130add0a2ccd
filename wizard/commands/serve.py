"""`verl-wizard serve [FILE]`: the screens in a browser."""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import secrets
import shlex
import sys
from pathlib import Path

from wizard.commands.options import add_python, fail
from wizard.text import printable

MISSING = "textual-serve is not installed here. Install it with: pip install 'verl-wizard[web]'"
OPEN = (
    "{host} is reached from other machines: anyone who gets hold of the address below can run code here as you, and "
    "the connection is not encrypted. Safer: serve on 127.0.0.1 and use ssh -L {port}:127.0.0.1:{port}."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="Plan, verl YAML or overrides to start from")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="port to listen on (default: 8000)")
    add_python(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until ctrl+c; exit 2 when that cannot be done here."""
    if not 1 <= arguments.port <= 65535:
        return fail(f"--port {arguments.port}: ports go from 1 to 65535", 2)
    if importlib.util.find_spec("textual_serve") is None:
        return fail(MISSING, 2)
    if not is_loopback(arguments.host):
        print("verl-wizard: " + OPEN.format(host=printable(arguments.host), port=arguments.port), file=sys.stderr)
    from wizard.web.server import serve

    try:
        serve(command_of(arguments.file, arguments.python), arguments.host, arguments.port, secrets.token_urlsafe(16))
    except OSError as error:
        return fail(f"{arguments.host}:{arguments.port}: {error.strerror or error}", 2)
    return 0


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than localhost may be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def command_of(file: Path | None, python: str) -> str:
    """Return the shell command of one wizard: the one entry that no folder of the same name can take the place of."""
    # The training repository's `wizard` folder would be found before ours with `-m`.
    entry = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r}); import wizard.cli as cli; "
    words = [sys.executable, "-c", entry + "sys.exit(cli.main())"]
    words += ["--python", python] if python else []
    words += [str(file.absolute())] if file is not None else []
    return shlex.join(words)
