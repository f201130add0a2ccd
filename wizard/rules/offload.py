"""Offload flags, and what verl really does with them per strategy."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.findings import Change, Fix, Severity, Stage
from wizard.rules.case import Case
from wizard.rules.registry import Found, rule, set_key

_FLAGS = ("param_offload", "optimizer_offload")


@rule(
    "offload-policy-fsdp1", "offload_policy belongs to fsdp2", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.offload_policy",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:459",
)  # fmt: skip
def offload_policy_fsdp1(case: Case) -> Iterator[Found]:
    """Under fsdp the key is never read: the memory it was meant to save is used."""
    for role in case.engines:
        key = case.engine_key(role, "offload_policy")
        if case.flag(key) and case.strategy(role) == "fsdp":
            flags = tuple(Change(case.engine_key(role, name), True) for name in _FLAGS)
            fixes = (
                set_key(case.strategy_key(role), "fsdp2", "strategy fsdp2"),
                Fix("param_offload and optimizer_offload instead", (Change(key, False), *flags)),
            )
            yield Found(key, f"the {role} runs with fsdp, which does not read it.", fixes)


@rule(
    "offload-policy-overrides", "offload_policy switches the other two offloads off", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.param_offload", "actor_rollout_ref.actor.fsdp_config.optimizer_offload"),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:459-461",
)  # fmt: skip
def offload_policy_overrides(case: Case) -> Iterator[Found]:
    """With fsdp2's CPUOffloadPolicy, parameters, gradients and optimizer live on the host all the time, and verl sets
    both flags to false."""
    for role in case.trained:
        given = [name for name in _FLAGS if case.flag(case.engine_key(role, name))]
        if case.strategy(role) == "fsdp2" and case.flag(case.engine_key(role, "offload_policy")) and given:
            both = tuple(Change(case.engine_key(role, name), False) for name in given)
            policy = case.engine_key(role, "offload_policy")
            fixes = (
                Fix(f"only offload_policy for the {role}", both),
                set_key(policy, False, "only the offload between phases"),
            )
            text = f"{' and '.join(given)} have no effect beside offload_policy."
            yield Found(case.engine_key(role, given[0]), text, fixes)


@rule(
    "ref-offload-forced", "the reference model is always offloaded", Severity.NOTE, Stage.SILENT,
    ("actor_rollout_ref.ref.fsdp_config.param_offload",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py (forward_only → CPUOffload, CPUOffloadPolicy)",
)  # fmt: skip
def ref_offload_forced(case: Case) -> Iterator[Found]:
    """Whatever the key says, its parameters live on the host and are gathered unit by unit: count its host memory,
    and expect its log-probabilities to be slow."""
    key = "actor_rollout_ref.ref.fsdp_config.param_offload"
    if case.uses_ref and not case.lora_rank and case.config.is_given(key) and case.get(key) is False:
        yield Found(key, "the reference is offloaded to the host all the same; the key has no effect.")


@rule(
    "reshard-param-offload", "reshard_after_forward off with param_offload", Severity.WARNING, Stage.FIRST_STEP,
    ("actor_rollout_ref.actor.fsdp_config.reshard_after_forward",), "verl-project/verl issue 4974",
)  # fmt: skip
def reshard_param_offload(case: Case) -> Iterator[Found]:
    """Weights that stay gathered after forward are not moved to the host; errors at the switch were reported."""
    for role in case.trained:
        key = case.engine_key(role, "reshard_after_forward")
        if case.get(key) is False and case.flag(case.engine_key(role, "param_offload")):
            yield Found(
                key, "gathered weights stay on the GPU when the shards move to the host.", (set_key(key, True),)
            )


@rule(
    "no-sync-memory", "gradient accumulation without sync keeps whole gradients", Severity.WARNING, Stage.FIRST_STEP,
    ("actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation",),
    "verl 0.9.1 workers/config/engine.py (default True), trainer/config/engine/fsdp.yaml (default false)",
)  # fmt: skip
def no_sync_memory(case: Case) -> Iterator[Found]:
    """With several micro-batches, every rank then holds an unsharded fp32 gradient of the whole model. The YAML's
    default is false, the dataclass's true: write the key."""
    for role in case.trained:
        key = case.engine_key(role, "use_no_sync_for_gradient_accumulation")
        architecture = case.architecture(role)
        if case.flag(key) and case.ranks(role) > 1:
            size = f" of {4 * architecture.parameters / 2**30:.0f} GiB" if architecture else ""
            yield Found(key, f"each GPU holds a whole unsharded gradient{size} until the last micro-batch.",
                        (set_key(key, False),))  # fmt: skip


@rule(
    "activation-offload-alone", "activation offload works with gradient checkpointing", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.model.enable_activation_offload",), "verl 0.9.1 utils/activation_offload.py",
)  # fmt: skip
def activation_offload_alone(case: Case) -> Iterator[Found]:
    """Without checkpointing, every tensor autograd keeps is copied to the host and back in each layer."""
    for block in ("actor_rollout_ref.model", *(["critic.model"] if case.uses_critic else [])):
        key = f"{block}.enable_activation_offload"
        if case.flag(key) and not case.flag(f"{block}.enable_gradient_checkpointing"):
            fix = set_key(f"{block}.enable_gradient_checkpointing", True)
            yield Found(key, "all activations travel to the host and back, not only each layer's input.", (fix,))
