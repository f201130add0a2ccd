"""The last resort: an exception nobody foresaw becomes one line for the person, and a traceback in a file."""

from __future__ import annotations

import traceback

from wizard.files import write_atomic
from wizard.scrub import scrub
from wizard.state import state_folder
from wizard.text import printable

LOG = "error.log"
_MOST_CHARACTERS = 300


def unexpected(error: BaseException) -> str:
    """Write the traceback to the error log and return what to tell: kind, message and the log's path.

    Neither holds keys or passwords. Where the log cannot be written, the traceback is told instead.
    """
    text = scrub("".join(traceback.format_exception(error)))
    path = state_folder() / LOG
    message = scrub(str(error)).strip().partition("\n")[0][:_MOST_CHARACTERS]
    told = f"unexpected {type(error).__name__}: {printable(message)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text, overwrite=True, mode=0o600)
    except OSError:
        return f"{told}; {path} cannot be written, so here is the traceback:\n{text}"
    return f"{told}; the traceback is in {path}"
