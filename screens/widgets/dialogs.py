"""Questions that need an answer before anything goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static
from textual.widgets.button import ButtonVariant

if TYPE_CHECKING:
    from screens.app import WizardApp


class Confirm(ModalScreen[bool]):
    """Asks a question with two answers; Escape gives the harmless one, which is no unless said otherwise."""

    app: WizardApp

    DEFAULT_CSS = """
    Confirm, Help, Ask { align: center middle; }
    Confirm > Vertical, Ask > Vertical, Help > VerticalScroll {
        width: 90%; max-width: 84; height: auto; max-height: 90%; border: round $accent; padding: 0 1;
        background: $surface;
    }
    Confirm Horizontal { height: auto; align-horizontal: right; }
    Confirm Button { margin-left: 2; }
    """
    BINDING_GROUP_TITLE = "Questions"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="answer-yes"),
        Binding("n", "answer(False)", "No", id="answer-no"),
        Binding("escape", "harmless", "The harmless answer", id="leave-question"),
        Binding("left,up", "app.focus_previous", "Other answer", id="answer-before", show=False),
        Binding("right,down", "app.focus_next", "Other answer", id="answer-after", show=False),
    ]

    def __init__(self, question: str, yes: str, no: str = "No", *, default: bool = False) -> None:
        super().__init__()
        self._question, self._yes, self._no, self._default = question, yes, no, default

    def compose(self) -> ComposeResult:
        labels = {True: f"{self._yes} ({{answer-yes}})", False: f"{self._no} ({{answer-no}})"}
        with Vertical():
            yield Static(self._question, markup=False)
            with Horizontal():
                for answer, label in labels.items():
                    variant: ButtonVariant = "primary" if answer is self._default else "default"
                    text = Content(self.app.keyed(label, Confirm))
                    yield Button(text, id="yes" if answer else "no", variant=variant, compact=True)

    def on_mount(self) -> None:
        # The harmless answer is the one that Enter gives.
        self.query_one("#yes" if self._default else "#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Close with an answer."""
        self.dismiss(answer)

    def action_harmless(self) -> None:
        """Close with the harmless answer."""
        self.dismiss(self._default)


class Ask(ModalScreen[str]):
    """Asks for one line of text; Escape gives none."""

    app: WizardApp

    BINDING_GROUP_TITLE = "Questions for a text"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss('')", "Leave", id="leave-ask")]

    def __init__(self, question: str, text: str = "") -> None:
        super().__init__()
        self._question, self._text = question, text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question, markup=False)
            yield Input(self._text, compact=True)
            yield Static(self.app.keyed("Enter takes it, {leave-ask} closes this.", Ask), classes="hint", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class Help(ModalScreen[None]):
    """Text to read; any of the usual keys closes it."""

    app: WizardApp

    BINDING_GROUP_TITLE = "Help"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f1,enter,question_mark", "close", "Close", id="close-help")
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text, markup=False)
            yield Static(self.app.keyed("{close-help} closes this.", Help), classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)
