"""What verl 0.9.1 really does for a combination of offload flags, in words. Pure.

Source: verl 0.9.1 `workers/engine/fsdp/transformer_impl.py` (`_build_fsdp_module`, `to`), `utils/fsdp_utils.py`.
"""

from __future__ import annotations

from wizard.plan import Plan


def offload_effects(plan: Plan) -> tuple[str, ...]:
    """Return one sentence for each thing that happens."""
    actor = plan.actor
    lines: list[str] = []
    if actor.offload_policy and actor.strategy == "fsdp2":
        lines.append(
            "offload_policy: parameters, gradients and AdamW live on the host; each unit is copied in for its compute, "
            "and the optimizer steps on the CPU. It lowers the update's peak. verl ignores the two flags beside it."
        )
    else:
        if actor.offload_policy:
            lines.append("offload_policy: fsdp does not read it.")
        if actor.param_offload:
            lines.append(
                "param_offload: shards wait on the host during rollout and ref; the update loads all of them back, so "
                "its peak stays."
            )
        if actor.optimizer_offload:
            lines.append("optimizer_offload: AdamW waits on the host outside the update; during it, it is on the GPU.")
    if not lines:
        lines.append("Everything of the actor stays on the GPU, also while the rollout runs.")
    if "ref" in plan.roles and not plan.model.lora_rank:
        lines.append("The reference model is always offloaded by verl and gathered unit by unit.")
    if plan.model.gradient_checkpointing:
        lines.append("Gradient checkpointing: one layer's activations at a time, about a third more compute.")
    if plan.model.activation_offload:
        lines.append("Activation offload: each layer's saved input is copied to the host in forward and back.")
    return tuple(lines)


def offload_advice(plan: Plan, fits_without: bool | None) -> str:
    """Return a warning where offloading costs more than it brings; empty otherwise."""
    actor = plan.actor
    if not (actor.param_offload or actor.optimizer_offload or actor.offload_policy) or not fits_without:
        return ""
    link = (
        " NVLink moves gathered shards many times faster than PCIe moves them to the host."
        if (plan.machine.interconnect == "nvlink")
        else ""
    )
    return f"It fits without offloading: the copies over PCIe are lost time.{link}"
