"""Questions that need an answer before anything goes on."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static


class Confirm(ModalScreen[bool]):
    """Asks a question with two answers; Escape and `n` are no."""

    DEFAULT_CSS = """
    Confirm, Help { align: center middle; }
    Confirm > Vertical, Help > VerticalScroll {
        width: 90%; max-width: 84; height: auto; max-height: 90%; border: round $accent; padding: 0 1;
        background: $surface;
    }
    Confirm Horizontal { height: auto; align-horizontal: right; }
    Confirm Button { margin-left: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "Yes"),
        ("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str, yes: str, no: str = "No") -> None:
        super().__init__()
        self._question, self._yes, self._no = question, yes, no

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question, markup=False)
            with Horizontal():
                yield Button(f"{self._yes} (y)", id="yes", compact=True)
                yield Button(f"{self._no} (n)", id="no", variant="primary", compact=True)

    def on_mount(self) -> None:
        # The harmless answer is the one that Enter gives.
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Close with an answer."""
        self.dismiss(answer)


class Help(ModalScreen[None]):
    """Text to read; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,f1,enter,question_mark", "close", "Close")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text, markup=False)
            yield Static("Escape closes this.", classes="hint")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)
