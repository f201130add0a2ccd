"""Step 8: algorithm, and which roles run on which GPUs."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from screens.base import StepScreen
from screens.widgets.fields import FieldForm
from wizard.placing import FORM, PlacementError, colocated, groups_text, parse_groups, separate_critic, separate_rollout
from wizard.plan import GpuGroup, Plan

ALGORITHM = [
    "algorithm.name",
    "algorithm.use_kl_loss",
    "algorithm.kl_loss_coef",
    "algorithm.use_kl_in_reward",
    "algorithm.entropy_coef",
]


class PlacementScreen(StepScreen):
    """Roles the algorithm needs, and their GPU groups."""

    step_id = "placement"
    intro = "The algorithm decides which roles exist; all of them share all GPUs unless you give some their own."
    findings_of = ("placement", "algorithm.", "critic.", "machine.", "trainer.")
    guide = (
        "Colocated roles take turns on the same GPUs. A separate rollout generates while the trainer updates "
        "(verl's separate_async trainer). A separate critic needs a launcher module, which is generated; verl keeps "
        f"actor and reference together. Groups are typed as {FORM}."
    )

    def compose_step(self) -> ComposeResult:
        yield FieldForm(ALGORITHM)
        yield Static("", id="roles", markup=False)
        yield OptionList(
            Option("colocated: all roles on all GPUs", id="colocated"),
            Option("rollout on half of the GPUs of its own", id="rollout"),
            Option("critic on half of the GPUs of its own", id="critic"),
            id="layouts",
            compact=True,
        )
        yield Input(placeholder=f"groups of your own: {FORM}", id="groups", compact=True)
        yield Static("", id="groups-problem", markup=False)
        yield FieldForm(["trainer.project_name", "trainer.experiment_name", "trainer.total_epochs", "trainer.logger"])

    def plan_changed(self, plan: Plan) -> None:
        for form in self.query(FieldForm):
            form.show(plan)
        groups = plan.placement.groups or (GpuGroup(plan.roles, plan.machine.nodes, plan.machine.gpus_per_node),)
        lines = [f"roles: {', '.join(plan.roles)}"]
        lines += [f"  {' + '.join(group.roles)}: {group.nodes} × {group.gpus_per_node} GPUs" for group in groups]
        self.query_one("#roles", Static).update("\n".join(lines))
        field = self.query_one("#groups", Input)
        if not field.has_focus:
            with self.prevent(Input.Changed):
                field.value = groups_text(plan.placement.groups)

    @on(OptionList.OptionSelected, "#layouts")
    def _layout(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        plan = self.app.plan
        makers = {"rollout": separate_rollout, "critic": separate_critic}
        maker = makers.get(event.option.id or "")
        self._place(maker(plan) if maker else colocated())

    @on(Input.Changed, "#groups")
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        problem = self.query_one("#groups-problem", Static)
        try:
            groups = parse_groups(event.value)
        except PlacementError as error:
            problem.update(str(error))
            return
        problem.update("")
        self._place(groups)

    def _place(self, groups: tuple[GpuGroup, ...]) -> None:
        self.app.edit("placement.groups", groups)
