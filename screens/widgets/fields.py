"""Fields of the Plan as a form: built from their specs, keeping whatever the person typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Checkbox, Input, Label, Select, Static

from screens.widgets.steady import Steady
from screens.widgets.tick import Tick
from wizard.derived import idle_fields
from wizard.plan import FieldSpec, Plan, PlanError, parse_value, spec_of
from wizard.steps import EMPTY, label_of, text_of

if TYPE_CHECKING:
    from screens.app import WizardApp


class FieldRow(Vertical):
    """One field: label, input, unit; below it what is wrong with what was typed."""

    DEFAULT_CSS = """
    FieldRow { height: auto; }
    FieldRow > Horizontal { height: 1; }
    FieldRow Label.name { width: 34; color: $text; }
    FieldRow Input, FieldRow Select { width: 1fr; max-width: 40; }
    FieldRow Label.unit { width: auto; padding-left: 1; color: $text-muted; }
    FieldRow .problem { color: $text-error; display: none; padding-left: 34; height: auto; }
    FieldRow.wrong .problem { display: block; }
    """

    class Edited(Message):
        """The person changed a field to a value that it can have."""

        def __init__(self, path: str, value: object) -> None:
            super().__init__()
            self.path, self.value = path, value

    app: WizardApp

    def __init__(self, path: str) -> None:
        super().__init__(id=f"field-{path.replace('.', '-')}")
        self.path = path
        self.spec: FieldSpec = spec_of(path)
        self._editor: Widget | None = None
        self._shown: object = None

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Label(label_of(self.path), classes="name", markup=False)
            # Made with its value: a Select that gets one later would first tell of its first option.
            self._shown = self.app.plan.get(self.path)
            self._editor = self._make_editor(self._shown)
            yield self._editor
            yield Label(self.spec.unit, classes="unit", markup=False)
        yield Steady("", classes="problem", markup=False)

    def _make_editor(self, value: object) -> Widget:
        if self.spec.type is bool:
            return Tick("", bool(value))
        if self.spec.choices:
            options = [(choice, choice) for choice in self.spec.choices]
            return Select(options, value=str(value), allow_blank=False, compact=True)
        return Input(text_of(value), EMPTY.get(self.path, ""), compact=True)

    def focus_editor(self) -> None:
        """Put the focus where the value is typed or chosen."""
        if self._editor is not None:
            self._editor.focus()

    def show(self, plan: Plan) -> None:
        """Show the Plan's value, unless the person is in the middle of typing something else."""
        value = plan.get(self.path)
        if value == self._shown:
            return
        self._shown = value
        with self.prevent(Input.Changed, Checkbox.Changed, Select.Changed):
            editor = self._editor
            if isinstance(editor, Checkbox):
                editor.value = bool(value)
            elif isinstance(editor, Select):
                editor.value = value
            elif isinstance(editor, Input):
                editor.value = text_of(value)
        self._say("")

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        try:
            value = parse_value(self.path, event.value)
            Plan().replace(self.path, value)
        except PlanError as error:
            self._say(str(error))
            return
        self._say("")
        self._tell(value)

    @on(Checkbox.Changed)
    def _ticked(self, event: Checkbox.Changed) -> None:
        event.stop()
        self._tell(event.value)

    @on(Select.Changed)
    def _chosen(self, event: Select.Changed) -> None:
        event.stop()
        self._tell(event.value)

    def _tell(self, value: object) -> None:
        if value != self._shown:
            self._shown = value
            self.post_message(self.Edited(self.path, value))

    def _say(self, problem: str) -> None:
        self.set_class(bool(problem), "wrong")
        self.query_one(".problem", Static).update(problem)


class FieldForm(Vertical):
    """Several fields, one under the other."""

    DEFAULT_CSS = "FieldForm { height: auto; }"

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        self.paths = tuple(paths)

    def compose(self) -> ComposeResult:
        for path in self.paths:
            yield FieldRow(path)

    def show(self, plan: Plan) -> None:
        """Show the Plan's values, without the fields that verl does not read under this Plan."""
        idle = idle_fields(plan)
        for row in self.query(FieldRow):
            row.show(plan)
            row.display = row.path not in idle
