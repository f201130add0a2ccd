"""Where the wizard in lines begins, and the exit code it leaves with."""

from __future__ import annotations

import dataclasses
import signal
import sys
from pathlib import Path
from types import FrameType

from wizard.files import FileExists
from wizard.opening import going_on, opening
from wizard.plain.flow import PlainWizard, Terminated
from wizard.plain.talk import Quit, Talk
from wizard.plan import PlanError
from wizard.session import Session

DONE, USAGE, CANCELLED = 0, 2, 130
UNANSWERED = "Scripts use `verl-wizard generate --model … --gpus … --out DIR` (see --help)."


def run_plain(file: Path | None, *, resume: bool, python: str) -> int:
    """Ask everything in lines; returns the exit code, 2 when the input ended before files were written."""
    try:
        plan, path, offer = opening(file, resume)
    except (PlanError, OSError) as error:
        print(f"verl-wizard: {error}", file=sys.stderr)
        return USAGE
    if python:
        plan = dataclasses.replace(plan, target=dataclasses.replace(plan.target, python=python))
    talk = Talk(sys.stdin, sys.stdout)
    wizard = PlainWizard(Session(plan, path), talk)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    try:
        if offer is not None and not wizard.resume(offer):
            return DONE
        running = going_on()
        if running is not None:
            wizard.offer_to_watch(running)
        code = wizard.run()
    except Quit as left:
        code = USAGE if left.ended and not wizard.written else DONE
        if code == USAGE:
            print(f"verl-wizard: the input ended at step {wizard.where}. {UNANSWERED}", file=sys.stderr)
    except KeyboardInterrupt:
        code = CANCELLED
    except Terminated as ended:
        code = 128 + ended.number
    return _leave(wizard.session, code)


def _leave(session: Session, code: int) -> int:
    try:
        session.save()
    except FileExists as error:
        print(f"verl-wizard: {error}", file=sys.stderr)
        return code or 1
    except OSError as error:
        print(f"verl-wizard: {session.path} could not be saved: {error.strerror}", file=sys.stderr)
        return code or 1
    print(f"verl-wizard: answers are in {session.path}", file=sys.stderr)
    return code


def _terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
