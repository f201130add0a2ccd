"""The command line. Parsing costs nothing but argparse; a command's own imports happen when it runs.

Data goes to stdout, messages to stderr. Exit codes: 0 done, 1 findings or a failed verdict, 2 usage, 130 cancelled.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from wizard import __version__
from wizard.terminal import harmless, harmless_messages

DONE, FOUND, USAGE, CANCELLED = 0, 1, 2, 130

COMMANDS = {
    "doctor": "versions, GPUs and host of the interpreter that trains",
    "cluster": "what differs between nodes, and how fast they reach each other",
    "inspect": "architecture, parameter counts and layer classes of a model",
    "generate": "write a starter configuration",
    "estimate": "memory by phase and step time of a configuration",
    "check": "find what breaks verl in a configuration, file or argument list",
    "capture": "check what a launch script would start",
    "explain": "print one rule of `check`",
    "validate": "run load, wrap, forward, backward and timing for real",
    "serve": "the wizard in a browser on this machine",
    "keys": "the keys of the screens, and how to change them",
    "debug": "from a failure to its cause: climb with a configuration, or read a log",
}
"""Each is `wizard.commands.<name>` with `add_arguments(parser)` and `run(arguments) -> exit code`."""
COLOURED = ("serve",)
"""Commands whose server prints in colours."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _own_packages_first()
    command = next((word for word in arguments[:1] if word in COMMANDS), None)
    with contextlib.ExitStack() as streams:
        if command not in COLOURED:
            streams.enter_context(contextlib.redirect_stderr(harmless_messages(sys.stderr)))
            # What goes to a file or a pipe is data, and stays as it is.
            if sys.stdout.isatty():
                streams.enter_context(contextlib.redirect_stdout(harmless(sys.stdout)))
        return _guarded(command, arguments)


def _guarded(command: str | None, arguments: list[str]) -> int:
    try:
        return _run_command(command, arguments[1:]) if command else _run_wizard(arguments)
    except KeyboardInterrupt:
        return CANCELLED
    except BrokenPipeError:
        # The reader (`| head`) has had enough; Python would complain once more while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:  # the last resort: one clear line, the traceback in a file
        from wizard.unexpected import unexpected

        print(f"verl-wizard: {unexpected(error)}", file=sys.stderr)
        return FOUND


def _own_packages_first() -> None:
    """Put our packages before a training repository's: `screens` and `generators` are common folder names."""
    home = str(Path(__file__).resolve().parent.parent)
    sys.path[:] = [home, *(entry for entry in sys.path if entry != home)]


def _run_command(name: str, arguments: list[str]) -> int:
    module = importlib.import_module(f"wizard.commands.{name}")
    parser = argparse.ArgumentParser(prog=f"verl-wizard {name}", description=_sentence(COMMANDS[name]))
    module.add_arguments(parser)
    code: int = module.run(parser.parse_args(arguments))
    sys.stdout.flush()
    return code


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _run_wizard(arguments: list[str]) -> int:
    commands = "\n".join(f"  {name:10}{text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="verl-wizard",
        description="Pick a verl configuration that starts, fits and runs fast, and prove it before the real run.",
        epilog=f"commands (each has --help):\n{commands}\n\nexit codes: 0 done, 1 findings or a failed verdict, "
        "2 usage, 130 cancelled",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="verl-wizard [--plain] [--resume] [--python PATH] [FILE]\n       verl-wizard COMMAND …",
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="Plan, verl YAML or overrides to start from")
    parser.add_argument("--version", action="version", version=f"verl-wizard {__version__}")
    parser.add_argument("--resume", action="store_true", help="go on with verl-wizard.yaml in this folder")
    parser.add_argument("--python", default="", metavar="PATH", help="interpreter that trains (default: this one)")
    parser.add_argument("--ascii", action="store_true", help="no characters beyond ASCII")
    parser.add_argument("--theme", default="", metavar="NAME", help="colours; ansi-dark or ansi-light: the terminal's")
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    parser.add_argument(
        "--plain", action="store_true", help="questions and answers in lines (so too where there is no terminal)"
    )
    options = parser.parse_args(arguments)
    if options.plain or _only_lines():
        from wizard.plain.start import run_plain

        return run_plain(options.file, resume=options.resume, python=options.python)
    from screens.start import run_app

    return run_app(
        options.file,
        resume=options.resume,
        python=options.python,
        ascii_only=options.ascii,
        mouse=not options.no_mouse,
        theme=options.theme,
    )


def _only_lines() -> bool:
    """Whether a screen cannot be drawn here."""
    if os.environ.get("TEXTUAL_DRIVER"):  # it draws elsewhere, such as in a browser
        return False
    return os.environ.get("TERM") == "dumb" or not (sys.stdin.isatty() and sys.stdout.isatty())
