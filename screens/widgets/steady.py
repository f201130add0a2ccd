"""Text that costs nothing while it stays the same."""

from __future__ import annotations

from textual.visual import VisualType
from textual.widgets import Static


class Steady(Static):
    """A Static that takes an update only when it differs: each one lays the whole screen out and sends the text."""

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        """Show `content`."""
        if content != self.content:
            super().update(content, layout=layout)
