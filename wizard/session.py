"""The answers of one sitting: the Plan, its history, and the file it is kept in. No UI."""

from __future__ import annotations

from pathlib import Path

from wizard.files import write_atomic
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

    def save(self) -> None:
        """Write the Plan; the version before stays as `NAME.bak`.

        Raises:
            OSError: the disk is full or the folder is gone; the Plan stays in memory.
        """
        if self.unsaved:
            write_atomic(self.path, plan_to_yaml(self.plan), overwrite=True, keep_previous=True)
            self._saved = self.plan
