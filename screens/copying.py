"""Copying: to the terminal's clipboard, and to a file, since no terminal says whether it took it."""

from __future__ import annotations

from typing import Any

from textual.app import App

from wizard.files import write_atomic
from wizard.state import state_folder

FILE_NAME = "copied.txt"


def copy_text(app: App[Any], what: str, text: str) -> None:
    """Copy a text and say where it is."""
    app.copy_to_clipboard(text)
    path = state_folder() / FILE_NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, f"{text.rstrip()}\n", overwrite=True, mode=0o600)
        where = f"It is also in {path}."
    except OSError as error:
        where = f"{path} could not be written: {error.strerror}."
    app.notify(f"{what}: sent to the terminal's clipboard (OSC 52). {where}", markup=False)
