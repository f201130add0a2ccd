"""Step 5: strategy and dtypes."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from screens.base import StepScreen
from screens.widgets.fields import FieldForm
from wizard.plan import Plan
from wizard.steps import step_of

EFFECTS = (
    "master   parameters and AdamW at rest; bf16 loses small updates\n"
    "param    gathered parameters and compute; bf16 needs compute capability 8.0\n"
    "reduce   gradients while ranks add them up; below fp32 most bits are lost\n"
    "buffer   rotary tables and the like; read by fsdp only"
)


class PrecisionScreen(StepScreen):
    """Strategy, and the dtype of each thing that has one."""

    DEFAULT_CSS = "PrecisionScreen #effects { margin-top: 1; color: $text-muted; }"

    step_id = "precision"
    intro = "How parameters are stored, computed with and reduced: fp32, bf16, fp32 for most."
    findings_of = step_of("precision").findings_of
    shows_cost = True
    guide = (
        "fsdp is torch's FullyShardedDataParallel: flat parameters, no CPU. fsdp2 is fully_shard: one DTensor a "
        "parameter, less memory, real CPU offload (offload_policy). fp16 adds a loss scaler (ShardedGradScaler)."
    )

    def compose_step(self) -> ComposeResult:
        yield FieldForm(step_of("precision").fields)
        yield Static(EFFECTS, id="effects", markup=False)

    def plan_changed(self, plan: Plan) -> None:
        self.query_one(FieldForm).show(plan)
