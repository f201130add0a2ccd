"""The wizard's ten steps: what each asks, in order, and whose findings it shows. The screens and `--plain` read it."""

from __future__ import annotations

from dataclasses import dataclass

from wizard.plan import Plan, spec_of


@dataclass(frozen=True)
class Step:
    """One step. Machine, model, layer classes and placement ask for more than fields: their front ends know."""

    id: str
    title: str
    about: str
    """One sentence on what is decided here, free of keys."""
    forms: tuple[tuple[str, ...], ...] = ()
    """Plan paths asked for, in blocks that belong together."""
    findings_of: tuple[str, ...] = ()
    """Beginnings of the Plan paths whose findings it shows; `("",)` all, empty none."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Plan paths of all blocks."""
        return tuple(path for form in self.forms for path in form)


STEPS = (
    Step(
        "environment",
        "Environment",
        "What the interpreter that trains has installed.",
        (("target.python", "target.verl_version"),),
        ("target.",),
    ),
    Step(
        "gpus",
        "GPUs",
        "The machine the run is planned for: this one, or one you describe.",
        findings_of=("machine.",),
    ),
    Step("model", "Model", "A folder, a Hugging Face id or a preset.", findings_of=("model.",)),
    Step(
        "layer_classes",
        "Layer classes",
        "Classes whose parameters are gathered and freed as one FSDP unit.",
        (("actor.min_num_params",),),
        ("actor.wrap", "actor.min_num"),
    ),
    Step(
        "precision",
        "Precision",
        "How parameters are stored, computed with and reduced: fp32, bf16, fp32 for most.",
        (
            (
                "actor.strategy",
                "actor.master_dtype",
                "actor.param_dtype",
                "actor.reduce_dtype",
                "actor.buffer_dtype",
                "model.attention",
            ),
        ),
        (
            "memory",
            "actor.strategy",
            "actor.master",
            "actor.param_d",
            "actor.reduce_d",
            "actor.buffer",
            "critic.",
            "model.att",
        ),
    ),
    Step(
        "offload",
        "Offload",
        "What leaves the GPU, and when. Offload costs time on every step.",
        (
            (
                "actor.param_offload",
                "actor.optimizer_offload",
                "actor.offload_policy",
                "model.gradient_checkpointing",
                "model.activation_offload",
                "actor.reshard_after_forward",
                "actor.no_sync",
            ),
        ),
        (
            "memory",
            "actor.param_off",
            "actor.optimizer_off",
            "actor.offload",
            "actor.reshard",
            "ref.param_off",
            "model.act",
        ),
    ),
    Step(
        "batches",
        "Sequence & batches",
        "Lengths, batch sizes, sequence parallelism, rollout. Train and mini-batches count prompts.",
        (
            (
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
            ),
            (
                "model.use_remove_padding",
                "rollout.engine",
                "rollout.tensor_parallel_size",
                "rollout.gpu_memory_utilization",
                "rollout.max_model_len",
                "rollout.max_num_batched_tokens",
                "rollout.enforce_eager",
                "data.train_files",
                "data.val_files",
            ),
        ),
        (
            "memory",
            "batches.",
            "data.",
            "rollout.",
            "actor.ulysses",
            "ref.ulysses",
            "critic.ulysses",
            "model.use_remove",
        ),
    ),
    Step(
        "placement",
        "Placement",
        "The algorithm decides which roles exist; all of them share all GPUs unless you give some their own.",
        (
            (
                "algorithm.name",
                "algorithm.use_kl_loss",
                "algorithm.kl_loss_coef",
                "algorithm.use_kl_in_reward",
                "algorithm.entropy_coef",
            ),
            ("trainer.project_name", "trainer.experiment_name", "trainer.total_epochs", "trainer.logger"),
        ),
        ("placement", "memory", "algorithm.", "critic.", "machine.", "trainer."),
    ),
    Step("review", "Review", "Everything at a glance, and writing the files.", findings_of=("",)),
    Step("validate", "Validate", "Loads, wraps, runs and times the model for real, in processes of its own."),
)

LABELS = {
    "algorithm.name": "algorithm",
    "batches.dynamic": "dynamic batch size",
    "rollout.engine": "rollout engine",
    "rollout.n": "responses a prompt (n)",
    "rollout.tensor_parallel_size": "rollout tensor parallel size",
    "target.python": "interpreter that trains",
}
"""Names of fields whose own needs its section."""
EMPTY = {"target.python": "the one this program runs in"}
"""What an empty field means."""


def step_of(step_id: str) -> Step:
    """Return the step of that id."""
    return next(step for step in STEPS if step.id == step_id)


def label_of(path: str) -> str:
    """Return a field's name as people read it."""
    return LABELS.get(path) or path.split(".", 1)[1].replace("_", " ")


def text_of(value: object) -> str:
    """Return a value as it is typed."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown(path: str, plan: Plan) -> str:
    """Return a field's value with its unit; what an empty one means."""
    text = text_of(plan.get(path)) or EMPTY.get(path, "empty")
    unit = spec_of(path).unit
    return f"{text} {unit}" if unit else text
