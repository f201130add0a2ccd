"""Step 3: the model, from a preset, a folder or the hub."""

from __future__ import annotations

import dataclasses

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from screens.base import StepScreen
from screens.widgets.dialogs import Confirm
from wizard.facts import Architecture
from wizard.model.catalog import Preset
from wizard.model.describe import critic_access, facts_of, matching_presets, model_and_revision
from wizard.model.errors import ModelError, RemoteCodeConsentNeeded
from wizard.model.selection import fitting
from wizard.plan import Plan
from wizard.steps import step_of
from wizard.text import printable, printable_lines


class ModelScreen(StepScreen):
    """A line to type the model into, the presets that match it, and what is known of the chosen one."""

    DEFAULT_CSS = """
    ModelScreen .line { height: 1; }
    ModelScreen Label.name { width: 14; }
    ModelScreen #model, ModelScreen #critic { width: 1fr; }
    ModelScreen #presets { height: auto; max-height: 5; border: none; padding: 0; }
    ModelScreen #state { display: none; height: auto; color: $text-muted; }
    ModelScreen #state.problem { color: $text-error; }
    ModelScreen #facts { height: auto; }
    """

    step_id = "model"
    intro = "Type a folder, a Hugging Face id or part of a preset; Down goes to the list."
    findings_of = step_of("model").findings_of
    guide = (
        "A Hugging Face id is owner/name, or owner/name@commit. Presets need neither torch nor a network. "
        "Other models are built from their config.json without weights: in "
        "the interpreter that trains, from the hub's cache first and then the hub. A model that brings code of its own "
        "is only read until you agree to run it."
    )

    class Resolved(Message):
        """A model was inspected."""

        def __init__(self, model: str, revision: str, trusted: bool, found: Architecture) -> None:
            super().__init__()
            self.model, self.revision, self.trusted, self.found = model, revision, trusted, found

    class CriticResolved(Message):
        """The critic's own model was inspected, with its value head."""

        def __init__(self, model: str, found: Architecture | None) -> None:
            super().__init__()
            self.model, self.found = model, found

    def __init__(self) -> None:
        super().__init__()
        self._shown: tuple[str, str] | None = None
        self._critic_shown = ""
        self._tried: tuple[str, str] | None = None
        self._offered: tuple[Preset, ...] = ()

    def compose_step(self) -> ComposeResult:
        with Horizontal(classes="line"):
            yield Label("model", classes="name")
            yield Input(id="model", compact=True, select_on_focus=True)
        yield OptionList(id="presets", compact=True)
        with Horizontal(classes="line"):
            yield Label("critic's own", classes="name")
            yield Input(id="critic", compact=True, placeholder="empty: the same model; only PPO has a critic")
        yield Static("", id="state", markup=False)
        yield Static("", id="facts", markup=False)

    def on_mount(self) -> None:
        self._offer("")
        self.query_one("#model", Input).focus(scroll_visible=False)

    def on_screen_resume(self) -> None:
        """Inspect what a file or another step named; once, as closing the consent dialog resumes the screen too."""
        model = self.app.plan.model
        if self.app.plan.architecture is None and (model.id, model.revision) != self._tried:
            self._tried = (model.id, model.revision)
            self.resolve(model.id, model.revision, model.trust_remote_code)

    def plan_changed(self, plan: Plan) -> None:
        """Show the Plan's model and its facts; what the person types stays until then."""
        chosen = (plan.model.id, plan.model.revision)
        if chosen != self._shown:
            self._shown = chosen
            field = self.query_one("#model", Input)
            with self.prevent(Input.Changed):
                field.value = "@".join(part for part in chosen if part)
            # What is typed next replaces it, as in a field that is entered.
            field.action_select_all()
        if plan.model.critic_id != self._critic_shown:
            self._critic_shown = plan.model.critic_id
            self.query_one("#critic", Input).value = plan.model.critic_id
        facts = facts_of(plan.architecture) if plan.architecture else [("not inspected yet", "Enter inspects it")]
        width = max(len(name) for name, _ in facts)
        lines = [f"{name:{width}}  {printable(value)}" for name, value in facts]
        # Before the screen's first layout a change of height would go unnoticed.
        self.call_after_refresh(self.query_one("#facts", Static).update, "\n".join(lines))

    def action_scroll(self, where: str) -> None:
        """From the model's field, down goes into the list below it."""
        presets = self.query_one("#presets", OptionList)
        if where == "down" and self.focused is self.query_one("#model"):
            presets.focus(scroll_visible=False)
            presets.highlighted = 0
        else:
            super().action_scroll(where)

    @property
    def pending(self) -> str:
        """What was typed, but not taken."""
        typed = model_and_revision(self.query_one("#model", Input).value)
        return f"model {typed[0]!r} was typed but not taken: Enter takes it" if typed != self._shown else ""

    @on(Input.Changed, "#model")
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._offer(event.value)

    def _offer(self, text: str) -> None:
        """List the presets that match, all of them when none does."""
        self._offered = matching_presets(text) or matching_presets("")
        options = self.query_one("#presets", OptionList)
        options.clear_options()
        options.add_options([Option(Text(f"{preset.title:34} {preset.id}")) for preset in self._offered])

    @on(Input.Submitted, "#model")
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        model, revision = model_and_revision(event.value)
        plan = self.app.plan
        same = (model, revision) == (plan.model.id, plan.model.revision)
        self.resolve(model, revision, plan.model.trust_remote_code and same)

    @on(Input.Submitted, "#critic")
    def _critic_entered(self, event: Input.Submitted) -> None:
        event.stop()
        model = event.value.strip()
        if model:
            self.resolve_critic(model)
        else:
            self.post_message(self.CriticResolved("", None))

    @on(OptionList.OptionSelected, "#presets")
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.resolve(self._offered[event.option_index].id, "", False)

    @work(exclusive=True, group="resolve")
    async def resolve(self, model: str, revision: str, trusted: bool) -> None:
        """Inspect a model in the background; a later question replaces an earlier one."""
        self._say(f"inspecting {model} …")
        try:
            found = await self.app.inspector.resolve(model, revision=revision, trust_remote_code=trusted)
        except RemoteCodeConsentNeeded as needed:
            self._say(str(needed), problem=True)
            self._ask(model, needed)
        except ModelError as error:
            self._say(str(error), problem=True)
        else:
            self.post_message(self.Resolved(model, revision, trusted, found))

    @work(exclusive=True, group="resolve")
    async def resolve_critic(self, model: str) -> None:
        """Inspect the critic's model; code of its own runs only when it is the policy's, which may."""
        self._say(f"inspecting {model} …")
        own = self.app.plan.model
        revision, trusted = critic_access(model, own.revision, trusted=own.trust_remote_code)
        try:
            found = await self.app.inspector.resolve(
                model, revision=revision, trust_remote_code=trusted, role="critic"
            )
        except ModelError as error:
            self._say(str(error), problem=True)
        else:
            self.post_message(self.CriticResolved(model, found))

    def on_model_screen_critic_resolved(self, event: CriticResolved) -> None:
        """Take the critic's model."""
        self._say(f"critic: {event.found.class_name}, {event.found.parameters:,} parameters" if event.found else "")
        plan = self.app.plan
        model = dataclasses.replace(plan.model, critic_id=event.model)
        self.app.set_plan(dataclasses.replace(plan, model=model, critic_architecture=event.found))

    def _ask(self, model: str, needed: RemoteCodeConsentNeeded) -> None:
        def answered(agreed: bool | None) -> None:
            if agreed:
                self.resolve(model, needed.revision, True)

        self.app.push_screen(Confirm(printable_lines(needed.question), "Run the code"), answered)

    def on_model_screen_resolved(self, event: Resolved) -> None:
        """Take the model; class names of another model are left out, and that is said."""
        plan = self.app.plan
        kept = fitting(event.found, plan.actor.wrap_classes)
        lost = sorted(set(plan.actor.wrap_classes) - set(kept))
        model = dataclasses.replace(
            plan.model, id=event.model, revision=event.revision, trust_remote_code=event.trusted
        )
        actor = dataclasses.replace(plan.actor, wrap_classes=kept)
        self._say(f"layer classes left out, this model has none of them: {', '.join(lost)}" if lost else "")
        self.app.set_plan(dataclasses.replace(plan, model=model, architecture=event.found, actor=actor))

    def _say(self, text: str, *, problem: bool = False) -> None:
        state = self.query_one("#state", Static)
        state.set_class(problem, "problem")
        state.display = bool(text)
        state.update(printable_lines(text))
