"""The answers of one sitting: the Plan, its history, and the file it is kept in. No UI."""

from __future__ import annotations

import time
from pathlib import Path

from wizard.files import FileExists, unused, write_atomic
from wizard.plan import Plan
from wizard.plan_file import plan_to_yaml

HISTORY = 200


class Session:
    """The Plan as it is now, with undo and redo, and where it is saved."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan = plan
        self.path = path
        self._past: list[Plan] = []
        self._future: list[Plan] = []
        self._saved: Plan | None = None
        self._on_disk = _read(path)
        """The file's bytes as they were last read or written here."""
        self._ours: bytes | None = None
        """The bytes that this sitting wrote last."""

    def begin(self, plan: Plan) -> None:
        """Go on with a Plan as if nothing had been answered before it."""
        self.plan = plan
        self._past.clear()
        self._future.clear()

    def put_aside(self) -> Path:
        """Move the file of an earlier sitting out of the way; returns its new name.

        Raises:
            OSError: the folder cannot be written.
        """
        day = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.path.stat().st_mtime))
        aside = unused(self.path.with_name(f"{self.path.stem}-{day}{self.path.suffix}"))
        self.path.rename(aside)
        self._on_disk = None
        return aside

    def change(self, plan: Plan) -> bool:
        """Take a new Plan; returns whether it differs from the present one."""
        if plan == self.plan:
            return False
        self._past = [*self._past, self.plan][-HISTORY:]
        self._future.clear()
        self.plan = plan
        return True

    def undo(self) -> bool:
        """Go back one change; returns whether there was one."""
        if not self._past:
            return False
        self._future.append(self.plan)
        self.plan = self._past.pop()
        return True

    def redo(self) -> bool:
        """Take an undone change again; returns whether there was one."""
        if not self._future:
            return False
        self._past.append(self.plan)
        self.plan = self._future.pop()
        return True

    @property
    def unsaved(self) -> bool:
        """Whether the Plan differs from what was last saved here."""
        return self.plan != self._saved

    def save(self, *, overwrite: bool = False) -> None:
        """Write the Plan; what was there before this sitting, or was written by somebody else, stays as `NAME.bak`.

        Raises:
            FileExists: somebody else changed the file meanwhile and `overwrite` is False.
            OSError: the disk is full or the folder is gone; the Plan stays in memory.
        """
        if not self.unsaved:
            return
        text = plan_to_yaml(self.plan)
        found = _read(self.path)
        if found is not None and found not in (self._on_disk, text.encode()) and not overwrite:
            raise FileExists(self.path)
        if found != text.encode():
            write_atomic(self.path, text, overwrite=True, keep_previous=found != self._ours)
            self._ours = text.encode()
        self._saved, self._on_disk = self.plan, text.encode()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
