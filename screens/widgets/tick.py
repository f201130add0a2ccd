"""A checkbox whose two states differ in their characters, not only in colour."""

from __future__ import annotations

from textual.widgets import Checkbox


class Tick(Checkbox):
    """`[X]` or `[ ]`."""

    DEFAULT_CSS = """
    Tick { min-width: 5; }
    Tick > .toggle--button { color: $text; background: $surface; }
    Tick.-on > .toggle--button { color: $text-success; background: $surface; }
    """

    BUTTON_LEFT = "["
    BUTTON_RIGHT = "]"

    def __init__(self, label: str = "", value: bool = False, *, id: str | None = None) -> None:
        self.BUTTON_INNER = _mark(value)
        super().__init__(label, value, id=id, compact=True)

    def watch_value(self) -> None:
        self.BUTTON_INNER = _mark(self.value)
        super().watch_value()


def _mark(value: bool) -> str:
    return "X" if value else " "
