"""Step 7: sequence parallelism, batches, rollout."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from screens.base import FIT, StepScreen
from screens.widgets.fields import FieldForm
from wizard.derived import derive, derived_text, ulysses_text
from wizard.plan import Plan


class BatchesScreen(StepScreen):
    """Lengths, batch sizes, Ulysses, rollout engine; derived numbers beside them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f9,w", "app.fit", "Fit", id="fit-batches", key_display="F9", tooltip=FIT)
    ]

    step_id = "batches"
    intro = "Train and mini-batches count prompts. F9 chooses all of these anew for the model and machine."
    findings_of = (
        "memory",
        "batches.",
        "data.",
        "rollout.",
        "actor.ulysses",
        "ref.ulysses",
        "critic.ulysses",
        "model.use_remove",
    )
    shows_cost = True
    guide = (
        "A step: train batch × n responses. It is cut into mini-batches (one optimizer update each), these over the "
        "data-parallel ranks, and there into micro-batches, one forward-backward pass each: a number of samples, or "
        "with dynamic batch size as many samples as a token budget holds."
    )

    def compose_step(self) -> ComposeResult:
        yield Static("", id="derived", markup=False)
        yield FieldForm(
            [
                "data.max_prompt_length",
                "data.max_response_length",
                "rollout.n",
                "batches.train_batch_size",
                "batches.mini_batch_size",
                "batches.dynamic",
                "batches.max_tokens_per_gpu",
                "batches.micro_batch_size_per_gpu",
                "batches.log_prob_max_tokens_per_gpu",
                "batches.log_prob_micro_batch_size_per_gpu",
                "batches.critic_max_tokens_per_gpu",
                "actor.ulysses_size",
            ]
        )
        yield Static("", id="ulysses", markup=False)
        yield FieldForm(
            [
                "model.use_remove_padding",
                "rollout.engine",
                "rollout.tensor_parallel_size",
                "rollout.gpu_memory_utilization",
                "rollout.max_model_len",
                "rollout.max_num_batched_tokens",
                "rollout.enforce_eager",
                "data.train_files",
                "data.val_files",
            ]
        )

    def plan_changed(self, plan: Plan) -> None:
        for form in self.query(FieldForm):
            form.show(plan)
        self.query_one("#derived", Static).update(derived_text(derive(plan)))
        self.query_one("#ulysses", Static).update(ulysses_text(plan))
