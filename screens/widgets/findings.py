"""What the rules say about the Plan, as a list; Enter applies a finding's first fix."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import on
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from wizard.findings import Finding, Fix, Severity
from wizard.text import printable

MARKS = {
    Severity.ERROR: ("x error", "bold red"),
    Severity.WARNING: ("! warning", "yellow"),
    Severity.NOTE: ("- note", ""),
}
"""Sign, word and style: meaning never hangs on colour alone."""
ORDER = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


def finding_text(finding: Finding) -> Text:
    """Return a finding as one paragraph."""
    mark, style = MARKS[finding.severity]
    text = Text.assemble((mark, style), " ", (printable(finding.field), "bold"), f": {printable(finding.message)}")
    if finding.fixes:
        text.append(f" → {printable(finding.fixes[0].label)}", style="green")
    return text


class FindingsPanel(OptionList):
    """Findings of the fields that a screen is about, errors first. Without any, one line says so."""

    DEFAULT_CSS = """
    FindingsPanel { height: auto; max-height: 6; border: none; border-top: solid $panel; padding: 0; }
    FindingsPanel:focus { border-top: solid $accent; }
    """

    class FixChosen(Message):
        """The person wants this fix applied."""

        def __init__(self, fix: Fix) -> None:
            super().__init__()
            self.fix = fix

    def __init__(self, prefixes: Sequence[str] = (), *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True)
        self.prefixes = tuple(prefixes)
        """Beginnings of Plan paths this panel shows; empty shows all."""
        self._findings: tuple[Finding, ...] = ()
        self._shown: tuple[Finding, ...] | None = None

    def show(self, findings: Sequence[Finding]) -> None:
        """Show those findings that concern this panel."""
        mine = [f for f in findings if not self.prefixes or f.field.startswith(self.prefixes)]
        self._findings = tuple(sorted(mine, key=lambda finding: ORDER.index(finding.severity)))
        if self._findings == self._shown:
            return
        self._shown = self._findings
        self.clear_options()
        self.add_options([Option(finding_text(finding)) for finding in self._findings] or [Option("No findings here.")])

    @property
    def first_fix(self) -> Fix | None:
        """The fix that one key applies: of the chosen finding when the list has the focus, else the first there is."""
        if self.has_focus and self.highlighted is not None and self.highlighted < len(self._findings):
            chosen = self._findings[self.highlighted]
            if chosen.fixes:
                return chosen.fixes[0]
        return next((finding.fixes[0] for finding in self._findings if finding.fixes), None)

    @on(OptionList.OptionSelected)
    def _apply(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_index < len(self._findings) and self._findings[event.option_index].fixes:
            self.post_message(self.FixChosen(self._findings[event.option_index].fixes[0]))
