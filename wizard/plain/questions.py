"""The questions of each step: what they show, and what an answer makes of the Plan. Pure but for reading the machine
and inspecting a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wizard.derived import derive, derived_text, idle_fields, ulysses_text
from wizard.field_help import field_help
from wizard.memory import group_peaks
from wizard.model.describe import critic_access, facts_of, matching_presets, model_and_revision
from wizard.model.errors import ModelError, RemoteCodeConsentNeeded
from wizard.model.resolve import resolve_model
from wizard.model.selection import candidates, fitting, outcome, recommended, selected, stored
from wizard.offload_text import offload_effects
from wizard.placing import FORM as GROUPS_FORM
from wizard.placing import PlacementError, groups_text, parse_groups, placement_lines
from wizard.plain.talk import Talk
from wizard.plan import Plan, PlanError, parse_value, spec_of
from wizard.probe.environment import read_rows
from wizard.probe.gpus import read_gpus
from wizard.probe.machine import FORM, MachineError, machine_text, parse_machine, parse_nodes, probe_machine
from wizard.steps import Step, label_of, shown

PRESETS_SHOWN = 8
_WORDS = {"y": "true", "yes": "true", "n": "false", "no": "false"}


class Wrong(ValueError):
    """An answer that cannot be taken; the message says why."""


@dataclass(frozen=True)
class Question:
    """One question. `take` may ask back and returns the changed Plan, or raises `Wrong`."""

    label: str
    value: Callable[[Plan], str]
    take: Callable[[Plan, str, Talk], Plan]
    help: Callable[[Plan], str]
    always: bool = False
    """Whether even an empty answer is taken: what stands is still to be looked at."""
    applies: Callable[[Plan], bool] = lambda plan: True
    choices: Sequence[str] = ()


def questions_of(step: Step) -> list[Question]:
    """Return what a step asks, in order."""
    fields = [_field(path) for path in step.fields]
    return {
        "gpus": [_MACHINE, _NODES],
        "model": [_MODEL, _CRITIC],
        "layer_classes": [_CLASSES, *fields],
        "placement": [*fields[: len(step.forms[0])], _GROUPS, *fields[len(step.forms[0]) :]]
        if step.id == "placement"
        else fields,
    }.get(step.id, fields)


def facts_of_step(step: Step, plan: Plan) -> Iterator[str]:
    """Yield what is known once a step's questions are answered, a line as soon as it is there."""
    architecture = plan.architecture
    if step.id == "environment":
        python = plan.target.python
        for row in read_rows(python, read_gpus(python)):
            yield f"  {row.name} {row.version or '-'}: {row.state.value}. {row.reason}"
            if row.install:
                yield f"    {row.install}"
    elif step.id == "model" and architecture is not None:
        yield from (f"  {name}: {value}" for name, value in facts_of(architecture))
    elif step.id == "layer_classes" and architecture is not None:
        yield outcome(architecture, plan.actor).text
    elif step.id == "offload":
        yield from offload_effects(plan)
    elif step.id == "batches":
        yield derived_text(derive(plan))
        yield ulysses_text(plan)
    elif step.id == "placement":
        yield from placement_lines(plan, group_peaks(plan))


def _field(path: str) -> Question:
    spec = spec_of(path)

    def take(plan: Plan, text: str, talk: Talk) -> Plan:
        word = _WORDS.get(text.lower(), text) if spec.type is bool else text
        try:
            return plan.replace(path, parse_value(path, word))
        except PlanError as error:
            raise Wrong(str(error)) from error

    return Question(
        label_of(path),
        lambda plan: shown(path, plan),
        take,
        lambda plan: field_help(path, plan),
        applies=lambda plan: path not in idle_fields(plan),
        choices=("yes", "no") if spec.type is bool else spec.choices,
    )


def _take_machine(plan: Plan, text: str, talk: Talk) -> Plan:
    try:
        machine = probe_machine() if text == "here" else parse_machine(text)
    except MachineError as error:
        raise Wrong(str(error)) from error
    return dataclasses.replace(plan, machine=dataclasses.replace(machine, nodes=plan.machine.nodes))


def _take_nodes(plan: Plan, text: str, talk: Talk) -> Plan:
    try:
        return dataclasses.replace(plan, machine=dataclasses.replace(plan.machine, nodes=parse_nodes(text)))
    except MachineError as error:
        raise Wrong(str(error)) from error


def _take_model(plan: Plan, text: str, talk: Talk) -> Plan:
    """Inspect the model; its own code runs only after consent, pinned to the revision that was shown."""
    model, revision = model_and_revision(text) if text else (plan.model.id, plan.model.revision)
    same = (model, revision) == (plan.model.id, plan.model.revision)
    if same and plan.architecture is not None:
        return plan
    trusted = same and plan.model.trust_remote_code
    talk.say(f"Inspecting {model} …")
    python = plan.target.python
    try:
        try:
            found = resolve_model(model, python=python, revision=revision, trust_remote_code=trusted)
        except RemoteCodeConsentNeeded as needed:
            talk.say(needed.question)
            if not talk.agree("Run the code?"):
                raise Wrong(f"{model} is not taken: without consent only config.json is read.") from needed
            revision, trusted = needed.revision, True
            found = resolve_model(model, python=python, revision=revision, trust_remote_code=True)
    except ModelError as error:
        near = matching_presets(text)[:PRESETS_SHOWN]
        presets = f"\nPresets that match: {', '.join(preset.id for preset in near)}" if near else ""
        raise Wrong(f"{error}{presets}") from error
    chosen = dataclasses.replace(plan.model, id=model, revision=revision, trust_remote_code=trusted)
    actor = dataclasses.replace(plan.actor, wrap_classes=fitting(found, plan.actor.wrap_classes))
    return dataclasses.replace(plan, model=chosen, architecture=found, actor=actor)


def _take_critic(plan: Plan, text: str, talk: Talk) -> Plan:
    own = "" if text == "same" else text
    revision, trusted = critic_access(own, plan.model.revision, trusted=plan.model.trust_remote_code)
    python = plan.target.python
    try:
        found = (
            resolve_model(own, python=python, revision=revision, trust_remote_code=trusted, role="critic")
            if own
            else None
        )
    except ModelError as error:
        raise Wrong(str(error)) from error
    return dataclasses.replace(plan, model=dataclasses.replace(plan.model, critic_id=own), critic_architecture=found)


def _classes(plan: Plan) -> str:
    if plan.architecture is None:
        return ", ".join(plan.actor.wrap_classes) or "chosen by the model"
    return ", ".join(selected(plan.architecture, plan.actor)) or "none"


def _take_classes(plan: Plan, text: str, talk: Talk) -> Plan:
    if plan.architecture is None:
        raise Wrong("No model has been inspected yet: :step model")
    names = frozenset(part.strip() for part in text.split(",") if part.strip())
    chosen = stored(plan.architecture, frozenset(recommended(plan.architecture)) if text == "blocks" else names)
    try:
        return plan.replace("actor.wrap_classes", list(chosen))
    except PlanError as error:
        raise Wrong(str(error)) from error


def _classes_help(plan: Plan) -> str:
    lines = [field_help("actor.wrap_classes", plan), "Class names with commas between, or `blocks`: repeated blocks."]
    for entry in candidates(plan.architecture) if plan.architecture else ():
        lines.append(f"  {entry.name}: {entry.count} of {entry.largest_parameters:,} parameters, {entry.kind}")
    return "\n".join(lines)


def _take_groups(plan: Plan, text: str, talk: Talk) -> Plan:
    try:
        return plan.replace("placement.groups", () if text == "colocated" else parse_groups(text))
    except (PlacementError, PlanError) as error:
        raise Wrong(str(error)) from error


_MACHINE = Question(
    "GPUs of one node",
    lambda plan: machine_text(plan.machine) if plan.machine.gpus_per_node else "cpu",
    _take_machine,
    lambda plan: f"`here` for the GPUs of this machine, or a description: {FORM}. The CPU validates with gloo.",
)
_NODES = Question("nodes", lambda plan: str(plan.machine.nodes), _take_nodes, lambda plan: "Machines of that kind.")
_MODEL = Question(
    "model",
    lambda plan: "@".join(part for part in (plan.model.id, plan.model.revision) if part),
    _take_model,
    lambda plan: (
        field_help("model.id", plan)
        + "\nowner/name@commit pins a revision. Presets, which need neither torch nor a network:\n"
        + "\n".join(f"  {preset.id}" for preset in matching_presets(""))
    ),
    always=True,
)
_CRITIC = Question(
    "critic's own model, or `same`",
    lambda plan: plan.model.critic_id or "same",
    _take_critic,
    lambda plan: field_help("model.critic_id", plan),
    applies=lambda plan: "critic" in plan.roles,
)
_CLASSES = Question("layer classes", _classes, _take_classes, _classes_help)
_GROUPS = Question(
    "GPU groups, or `colocated`",
    lambda plan: groups_text(plan.placement.groups) or "colocated",
    _take_groups,
    lambda plan: f"{field_help('placement.groups', plan)}\nGroups are typed as {GROUPS_FORM}.",
)
