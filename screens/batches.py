"""Step 7: sequence parallelism, batches, rollout."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from screens.base import StepScreen
from screens.widgets.fields import FieldForm
from wizard.derived import derive, ulysses_text
from wizard.plan import Plan


class BatchesScreen(StepScreen):
    """Lengths, batch sizes, Ulysses, rollout engine; derived numbers beside them."""

    step_id = "batches"
    intro = "Train and mini-batches count prompts; micro-batches count samples, or tokens with dynamic batching."
    findings_of = (
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
        "data-parallel ranks, and there into micro-batches, one forward-backward pass each."
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
        numbers = derive(plan)
        unit = "≤" if not self.app.ascii_only else "<="
        self.query_one("#derived", Static).update(
            f"A step: {numbers.samples_per_step} samples ({numbers.padded_samples} after padding), "
            f"{numbers.samples_per_rank} on each of {numbers.data_parallel} data-parallel ranks, "
            f"{numbers.updates_per_step} updates; an update: {numbers.mini_samples_per_rank} samples a rank in "
            f"{numbers.micro_batches} passes of {unit} {numbers.tokens_per_micro_batch} tokens."
        )
        self.query_one("#ulysses", Static).update(ulysses_text(plan))
