"""What the rules say about the Plan, as a list; Enter applies a finding's first fix."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import on
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from wizard.findings import Change, Finding, Fix, Severity
from wizard.text import printable, printable_lines
from wizard.verl.overrides import override_text

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


def _override(change: Change) -> str:
    key = change.field.lstrip("+~")
    return override_text(key, change.value, "+" if change.field.startswith("+") else "")


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
        chosen = self._chosen
        if chosen is not None and chosen.fixes:
            return chosen.fixes[0]
        return next((finding.fixes[0] for finding in self._findings if finding.fixes), None)

    @property
    def to_copy(self) -> tuple[str, str] | None:
        """Name and text of the chosen finding, else of the first one: what it says, and each fix as overrides."""
        finding = self._chosen or next(iter(self._findings), None)
        if finding is None:
            return None
        lines = [f"{finding.field}: {finding.message}"]
        for fix in finding.fixes:
            lines += [f"# {fix.label}", *map(_override, fix.changes)]
        return f"The finding on {printable(finding.field)}", printable_lines("\n".join(lines))

    @property
    def _chosen(self) -> Finding | None:
        here = self.highlighted if self.has_focus else None
        return self._findings[here] if here is not None and here < len(self._findings) else None

    @on(OptionList.OptionSelected)
    def _apply(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_index < len(self._findings) and self._findings[event.option_index].fixes:
            self.post_message(self.FixChosen(self._findings[event.option_index].fixes[0]))
