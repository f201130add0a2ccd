"""Checkboxes whose two states differ in their characters, not only in colour."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widgets import Checkbox, SelectionList


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


class TickList(SelectionList[str]):
    """A list to tick entries of, each `[X]` or `[ ]`."""

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        index = self.scroll_offset.y + y
        if index >= self.option_count:
            return strip
        _, button, _, *rest = strip
        style = (rest[0].style or Style()) + Style(meta=button.style.meta if button.style else None)
        mark = f"[{_mark(self.get_option_at_index(index).value in self.selected)}]"
        return Strip([Segment(mark, style), *rest])


def _mark(value: bool) -> str:
    return "X" if value else " "
