"""Numbers that are no longer finite."""

from __future__ import annotations

import re

from wizard.diagnosis.evidence import Cause, Level, set_fields
from wizard.findings import Fix
from wizard.plan import Plan


def wider_dtypes(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    """Undo the dtype choices that overflow or lose bits, the likeliest first."""
    fixes: tuple[Fix, ...] = ()
    actor = plan.actor
    if actor.param_dtype == "fp16":
        fixes += (set_fields("compute in bf16", actor__param_dtype="bf16"),)
    if actor.reduce_dtype != "fp32":
        fixes += (set_fields("reduce gradients in fp32", actor__reduce_dtype="fp32"),)
    if actor.master_dtype != "fp32":
        fixes += (set_fields("fp32 master weights", actor__master_dtype="fp32"),)
    if plan.model.attention == "flash_attention_2":
        fixes += (set_fields("attention without flash-attn", model__attention="sdpa"),)
    return fixes


CAUSES = (
    Cause(
        "non-finite-parameter",
        "a weight is not finite",
        re.compile(r"parameter (?P<name>[\w.]+) (?:holds|has) (?:a )?(?:nan|inf|non-finite)", re.IGNORECASE),
        "The weight {name} already holds NaN or infinity when it is loaded.",
        "The checkpoint is damaged: load an earlier one, or download it again.",
        source="verl-wizard's validation",
    ),
    Cause(
        "non-finite-activation",
        "a module produced a value that is not finite",
        re.compile(r"first non-finite output in (?P<name>(?:the )?[\w.]+)", re.IGNORECASE),
        "{name} is the first module whose result is NaN or infinite.",
        "If its weights are finite, its dtype overflows: compute in bf16, reduce in fp32; else the checkpoint is "
        "damaged.",
        fixes=wider_dtypes,
        source="verl-wizard's validation",
    ),
    Cause(
        "non-finite-backward",
        "a module turned finite gradients into NaN or infinity",
        re.compile(r"first non-finite gradient in (?P<name>[\w.]+\w)(?: on rank (?P<rank>\d+))?"),
        "The loss is finite, and the gradient became NaN or infinite on its way back through {name} (rank {rank}).",
        "With fp16, it overflows: compute in bf16. Else look in that module for a derivative that is infinite: the "
        "square root or norm of zero, a division by a masked value.",
        fixes=wider_dtypes,
        source="verl-wizard's validation",
    ),
    Cause(
        "no-gradient",
        "weights get no gradient",
        re.compile(
            r"no gradient reached (?P<name>[\w.]*\w)"
            r"|element 0 of tensors does not require grad and does not have a grad_fn"
        ),
        "The loss does not depend on {name} for autograd, so these weights never learn; FSDP does not say so.",
        "Look for detach(), no_grad(), .data or item() between this module and the loss, or a result that is not used.",
        source="verl-wizard's validation; torch `csrc/autograd`",
    ),
    Cause(
        "non-finite-sampling",
        "the rollout sampled from probabilities that are not finite",
        re.compile(r"probability tensor contains either `?inf`?, `?nan`?"),
        "The model's logits became NaN or infinite, so no token can be drawn.",
        "The weights are damaged by an earlier update, or fp16 overflowed: look at grad_norm in the steps before.",
        level=Level.SYMPTOM,
        fixes=wider_dtypes,
        source="torch `aten/src/ATen/native/cuda/MultinomialKernel.cu`",
    ),
    Cause(
        "non-finite-gradient",
        "gradients are not finite",
        re.compile(r"grad_norm is not finite: (?P<value>\S+)|Function '(?P<name>\w+)' returned nan values"),
        "verl skipped an update because the gradient norm was {value}.",
        "Once is harmless with fp16; again and again means overflow or damaged weights: compute in bf16, reduce in "
        "fp32.",
        level=Level.SYMPTOM,
        fixes=wider_dtypes,
        source="verl 0.9.1 `workers/engine/fsdp/transformer_impl.py`",
    ),
    Cause(
        "non-finite-loss",
        "the loss is not finite",
        re.compile(
            r"\b(?:pg_loss|pf_loss|vf_loss|kl_loss|grad_norm|loss)['\"]?\s*[:=]\s*(?:np\.float64\()?(?P<value>nan|-?inf)\b",
            re.IGNORECASE,
        ),
        "A loss or gradient norm in the metrics is {value}.",
        "Compute in bf16 and reduce in fp32; if it starts at step 1, validate the checkpoint.",
        level=Level.SYMPTOM,
        fixes=wider_dtypes,
        source="verl 0.9.1 `utils/logger/aggregate_logger.py`",
    ),
)
