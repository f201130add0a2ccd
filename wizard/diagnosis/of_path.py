"""What a file or folder tells of a failure: a training log, or the run folder of a validation."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from wizard.diagnosis.diagnose import Diagnosis, diagnose_log, diagnose_verdict
from wizard.diagnosis.log_lines import read_lines
from wizard.plan import Plan
from wizard.validation.run_folder import RESULT, read_result

LOG = "log.txt"


def is_run_folder(path: Path) -> bool:
    """Return whether a validation has left its files in a folder."""
    return path.is_dir() and any((path / name).exists() for name in (RESULT, LOG))


def diagnose_path(path: Path, plan: Plan) -> Diagnosis | None:
    """Return why a run failed, None when nothing did; fixes start from the values of `plan`.

    Raises:
        NoRun: a folder's result is not what a validation writes.
        OSError: it cannot be read, or is a device.
    """
    if not path.is_dir():
        with path.open("rb") as stream:
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode) and not os.isatty(stream.fileno()):
                raise OSError(errno.EINVAL, "a device, not a log", str(path))
            return diagnose_log(read_lines(stream), plan)
    verdict = read_result(path)
    if verdict is not None:
        return diagnose_verdict(verdict, plan)
    with (path / LOG).open("rb") as stream:
        return diagnose_log(read_lines(stream), plan)
