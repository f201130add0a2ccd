"""`verl-wizard doctor`: versions, GPUs and host, as the training would find them."""

from __future__ import annotations

import argparse
import json
import sys

import msgspec

from wizard.commands.options import add_python
from wizard.probe.doctor_text import doctor_text
from wizard.probe.environment import read_environment
from wizard.probe.gpus import read_gpus
from wizard.probe.host import read_host


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_python(parser)
    parser.add_argument("--json", action="store_true", help="everything that was read, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the three reports; exit 1 when a row of the environment is FAIL."""
    if sys.stderr.isatty():
        print("Asking the interpreter, importing torch …", file=sys.stderr)
    gpus = read_gpus(arguments.python)
    environment = read_environment(arguments.python, gpus=gpus)
    host = read_host()
    if arguments.json:
        report = {"failed": environment.failed, "environment": environment, "gpus": gpus, "host": host}
        json.dump(msgspec.to_builtins(report), sys.stdout)
        print()
    else:
        print(doctor_text(environment, gpus, host))
    return 1 if environment.failed else 0
