"""One rank of a validation run: `python _target_entry.py wizard.validation.worker SPEC FOLDER` under torchrun."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from wizard.scrub import hide_secrets
from wizard.validation.agent import die_with_parent
from wizard.validation.reporter import Reporter
from wizard.validation.spec import ValidationSpec, read_spec
from wizard.validation.stacks import stack_file


def main(argv: list[str]) -> int:
    """Run all steps of the spec; 0 only when every one passed."""
    return run_rank(argv, lambda file, reporter: _run(read_spec(file), reporter))


def run_rank(argv: list[str], run: Callable[[Path, Reporter], None]) -> int:
    """Be one rank, `argv` its spec file and folder: call `run` and tell how it ended."""
    die_with_parent(os.getppid())
    faulthandler.enable()
    folder, rank = Path(argv[1]), int(os.environ["RANK"])
    reporter = Reporter(folder, rank)
    with suppress(AttributeError, ValueError, OSError):
        # The wizard asks a hung rank for its stacks. The file stays open for as long as the process lives.
        stacks = stack_file(folder, rank).open("w")
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    try:
        run(Path(argv[0]), reporter)
    except Exception:
        # The failure event is written; the log gets the whole traceback for people.
        sys.stderr.write(hide_secrets(traceback.format_exc()))
        sys.stderr.flush()
        # A process group that others still wait in cannot be torn down in order.
        os._exit(1)
    reporter.step = ""
    reporter.tell("finished")
    return 0


def _run(spec: ValidationSpec, reporter: Reporter) -> None:
    with reporter.running("environment"):
        from wizard.validation.setup import start

        if reporter.rank == 0:
            for note in spec.notes:
                reporter.log(note)
        context = start(spec, reporter)
    if spec.engine == "verl":
        from wizard.validation.verl_engine import run_steps
    else:
        from wizard.validation.torch_engine import run_steps
    import torch.distributed as dist

    run_steps(context)
    dist.barrier()
    dist.destroy_process_group()
