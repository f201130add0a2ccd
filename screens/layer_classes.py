"""Step 4: which layer classes become FSDP units."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import DataTable, Input, Label, SelectionList, Static
from textual.widgets.selection_list import Selection

from screens.base import StepScreen
from screens.widgets.fields import FieldForm
from screens.widgets.tick import TickList
from wizard.facts import Architecture
from wizard.model.selection import (
    UNIT_COLUMNS,
    candidates,
    nothing_chosen,
    outcome,
    recommended,
    remark,
    selected,
    stored,
    unit_rows,
)
from wizard.plan import Plan
from wizard.steps import step_of
from wizard.text import count, printable

NAMED_BY = {(True, True): "both", (True, False): "model", (False, True): "structure", (False, False): ""}
MISSING = "No model has been inspected yet: go back to the model step."


class LayerClassesScreen(StepScreen):
    """The classes of the model to tick, what follows from ticking them, and the units they give."""

    DEFAULT_CSS = """
    LayerClassesScreen #classes { height: auto; max-height: 6; border: none; padding: 0; }
    LayerClassesScreen .line { height: 1; }
    LayerClassesScreen Label.name { width: 26; }
    LayerClassesScreen #other { width: 1fr; max-width: 40; }
    LayerClassesScreen #head { color: $text-muted; padding-left: 5; height: 1; }
    LayerClassesScreen #outcome, LayerClassesScreen #remarks { height: auto; }
    LayerClassesScreen #outcome.stops { color: $text-error; }
    LayerClassesScreen #remarks { color: $text-warning; }
    LayerClassesScreen #units { height: auto; max-height: 6; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f9,w", "take_blocks", "Blocks", id="take-blocks", tooltip="Tick the model's repeated blocks")
    ]

    step_id = "layer_classes"
    shows_cost = True
    intro = "Space ticks the classes that are gathered and freed as one unit. Ticked is what verl would take by itself."
    findings_of = step_of("layer_classes").findings_of
    guide = (
        "A unit's parameters are gathered before its forward and backward and freed after them. One decoder layer a "
        "unit is right for most models. `model`: its `_no_split_modules` names the class; `structure`: "
        "it is a repeated block that holds the parameters. min_num_params cuts by size instead: fsdp then ignores "
        "the classes, fsdp2 ignores the size. A name that is not in the list can be typed: a training script may patch "
        "classes in."
    )

    def __init__(self) -> None:
        super().__init__()
        self._architecture: Architecture | None = None
        self._listed: tuple[str, ...] = ()

    def compose_step(self) -> ComposeResult:
        yield Static("", id="head", markup=False)
        yield TickList(id="classes", compact=True)
        yield Static("", id="outcome", markup=False)
        yield Static("", id="remarks", markup=False)
        yield DataTable(id="units", cursor_type="row")
        with Horizontal(classes="line"):
            yield Label("another class name", classes="name")
            yield Input(id="other", compact=True, placeholder="finds a class; Enter ticks or adds it")
        yield FieldForm(step_of("layer_classes").fields)

    def on_mount(self) -> None:
        self.query_one("#units", DataTable).add_columns(*UNIT_COLUMNS)
        self.query_one("#classes", SelectionList).focus(scroll_visible=False)
        self.call_after_refresh(self.query_one("#body").scroll_home, animate=False)

    def plan_changed(self, plan: Plan) -> None:
        """Tick what the Plan holds and show its units."""
        self.query_one(FieldForm).show(plan)
        architecture = plan.architecture
        if architecture is None:
            self.query_one("#outcome", Static).update(MISSING)
            return
        ticked = selected(architecture, plan.actor)
        self._list(architecture, ticked)
        self._tick(ticked)
        found = outcome(architecture, plan.actor)
        text = self.query_one("#outcome", Static)
        text.set_class(found.stops, "stops")
        text.update(printable(found.text))
        remarks = [(name, remark(architecture, name)) for name in ticked]
        lines = [f"{printable(name)}: {why}" for name, why in remarks if why]
        advice = recommended(architecture)
        if frozenset(ticked) != frozenset(advice) and advice:
            names = ", ".join(map(printable, advice))
            ticks = self.app.keyed("{take-blocks} ticks them", LayerClassesScreen)
            lines.append(f"Repeated blocks of this model ({ticks}): {names}")
        self.query_one("#remarks", Static).update("\n".join(lines))
        table = self.query_one("#units", DataTable)
        table.clear()
        for row in unit_rows(found.units):
            table.add_row(*(Text(printable(cell)) for cell in row))

    def _list(self, architecture: Architecture, ticked: tuple[str, ...]) -> None:
        """List the model's classes, and ticked names that are none of them."""
        entries = candidates(architecture)
        known = tuple(entry.name for entry in entries)
        listed = (*(name for name in self._listed if name not in known and architecture is self._architecture), *known)
        listed = (*(name for name in ticked if name not in listed), *listed)
        if architecture is self._architecture and listed == self._listed:
            return
        self._architecture, self._listed = architecture, listed
        width = max(len(name) for name in listed)
        rows = {name: f"{printable(name):{width}}  not a class of this model" for name in listed if name not in known}
        for entry in entries:
            named = NAMED_BY[entry.in_no_split_modules, entry.detected]
            share = f"{entry.parameters / max(1, architecture.parameters):.1%}"
            rows[entry.name] = (
                f"{printable(entry.name):{width}}  {entry.count:>5}  {share:>6}  {count(entry.largest_parameters):>6}  "
                f"{entry.kind:9}  {named}"
            )
        self.query_one("#head", Static).update(f"{'class':{width}}  count   share    unit  kind       named by")
        choices = self.query_one("#classes", SelectionList)
        with self.prevent(SelectionList.SelectedChanged):
            choices.clear_options()
            choices.add_options([Selection(Content(rows[name].rstrip()), name) for name in listed])

    def _tick(self, names: tuple[str, ...]) -> None:
        choices = self.query_one("#classes", SelectionList)
        if set(choices.selected) == set(names):
            return
        with self.prevent(SelectionList.SelectedChanged):
            choices.deselect_all()
            for name in names:
                choices.select(name)

    @on(SelectionList.SelectedChanged, "#classes")
    def _ticked(self, event: SelectionList.SelectedChanged[str]) -> None:
        event.stop()
        self._choose(frozenset(event.selection_list.selected))

    @on(Input.Changed, "#other")
    def _sought(self, event: Input.Changed) -> None:
        """Show the first class that the typed text is a part of."""
        event.stop()
        text = event.value.strip().lower()
        found = [index for index, name in enumerate(self._listed) if text and text in name.lower()]
        if found:
            self.query_one("#classes", SelectionList).highlighted = found[0]

    @on(Input.Submitted, "#other")
    def _added(self, event: Input.Submitted) -> None:
        event.stop()
        name = event.value.strip()
        if name and self._architecture is not None:
            self._choose(frozenset((*self.query_one("#classes", SelectionList).selected, name)))
            event.input.value = ""

    def action_take_blocks(self) -> None:
        """Tick the model's repeated blocks and nothing else."""
        if self._architecture is not None:
            self._choose(frozenset(recommended(self._architecture)))

    def _choose(self, names: frozenset[str]) -> None:
        if self._architecture is None:
            return
        self.app.edit("actor.wrap_classes", list(stored(self._architecture, names)))
        if not names:
            self.app.notify(nothing_chosen(self._architecture), markup=False)
            self._tick(selected(self._architecture, self.app.plan.actor))
