"""Sharding sizes and Ulysses sequence parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wizard.facts import Architecture
from wizard.findings import Fix, Severity, Stage
from wizard.rules.case import OWNERS, Case, Engine
from wizard.rules.registry import Found, rule, set_key
from wizard.verl.keys import ACTOR, MODEL, REF


def heads_refusal(architecture: Architecture, size: int) -> str:
    """Return why Ulysses cannot split this model's heads over `size` ranks, an empty text if it can.

    Source: verl 0.9.1 `models/transformers/monkey_patch.py:343-350`.
    """
    heads, kv_heads = architecture.num_attention_heads, architecture.num_key_value_heads
    if heads and heads % size:
        return f"{heads} attention heads do not divide by {size}"
    if kv_heads and kv_heads % size and size % kv_heads:
        return f"{kv_heads} key-value heads neither divide by {size} nor divide it"
    return ""


def ulysses_refusal(architecture: Architecture | None, world_size: int, size: int) -> str:
    """Return why a Ulysses size cannot be used, an empty text if it can."""
    if size > world_size or world_size % size:
        return f"it does not divide the {world_size} GPUs"
    return heads_refusal(architecture, size) if architecture else ""


def _smaller(case: Case, role: Engine, size: int) -> tuple[Fix, ...]:
    """Offer the next smaller size that divides everything."""
    for smaller in range(min(size - 1, case.ranks(role)), 0, -1):
        if not ulysses_refusal(case.architecture(role), case.ranks(role), smaller):
            return (_set_size(case, (role,), smaller),)
    return ()


def _set_size(case: Case, roles: Sequence[Engine], size: int) -> Fix:
    """Set every key that decides the roles' size, so that none of them wins over another."""
    keys = [case.engine_key(role, "ulysses_sequence_parallel_size") for role in roles]
    keys += [f"{OWNERS[role]}.ulysses_sequence_parallel_size" for role in roles if role != "critic"]
    changes = tuple(change for key in keys for change in set_key(key, size).changes)
    return Fix(f"sequence parallel size {size}", changes)


@rule(
    "fsdp-size", "the shard size divides the GPUs", Severity.ERROR, Stage.WORKERS,
    ("actor_rollout_ref.actor.fsdp_config.fsdp_size",),
    "verl 0.9.1 workers/engine/fsdp/utils.py:47-52, utils/fsdp_utils.py:72",
)  # fmt: skip
def fsdp_size(case: Case) -> Iterator[Found]:
    """verl does not check it. Ranks beyond the last whole group get no place in the mesh and stop with a TypeError,
    while all others wait for them; 0 divides by zero."""
    for role in case.engines:
        key, ranks = case.engine_key(role, "fsdp_size"), case.ranks(role)
        size = case.number(key, -1)
        if size < 0 or size >= ranks or (size and ranks % size == 0):
            continue
        divisors = [d for d in range(1, ranks) if ranks % d == 0 and d <= max(1, size)]
        fixes = (set_key(key, -1, "shard over all GPUs"), set_key(key, divisors[-1]))
        what = "divides by zero" if size == 0 else f"does not divide {ranks} GPUs: some ranks stop, others hang"
        yield Found(key, f"a shard size of {size} {what}.", fixes)


@rule(
    "hsdp", "shard groups smaller than the world replicate the model", Severity.NOTE, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.fsdp_size",),
    "verl 0.9.1 workers/engine/fsdp/utils.py:47-66 (create_device_mesh, get_sharding_strategy)",
)  # fmt: skip
def hsdp(case: Case) -> Iterator[Found]:
    """Each group of `fsdp_size` ranks holds a whole copy of parameters, gradients and optimizer (HSDP): more memory a
    GPU, less traffic between groups. With 1, every GPU holds everything."""
    for role in case.trained:
        key, ranks = case.engine_key(role, "fsdp_size"), case.ranks(role)
        size = case.number(key, -1)
        if 0 < size < ranks and ranks % size == 0:
            times = ranks // size
            yield Found(key, f"the {role}'s states take {times} times the memory a GPU that full sharding takes.",
                        (set_key(key, -1, "shard over all GPUs"),))  # fmt: skip


LINEAR_ATTENTION = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")


@rule(
    "ulysses-linear-attention", "sequence parallelism of linear attention is young", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",),
    "verl 0.9.1 models/transformers/monkey_patch.py (qwen3_5); verl-project/verl issue 7476",
)  # fmt: skip
def ulysses_linear_attention(case: Case) -> Iterator[Found]:
    """Gated delta nets are not flash attention: they split sequences in a patch of verl's own. Activations that stayed
    at full length were reported; the validation's parity step and its peak memory show it."""
    for role in case.engines:
        architecture, size = case.architecture(role), case.ulysses(role)
        if size > 1 and architecture is not None and architecture.model_type in LINEAR_ATTENTION:
            text = f"{architecture.model_type} was reported to keep whole sequences on every rank: validate it first."
            yield Found(case.ulysses_key(role), text, (_set_size(case, (role,), 1),))


@rule(
    "ulysses-world", "the sequence parallel size divides the GPUs", Severity.ERROR, Stage.WORKERS,
    ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:247",
)  # fmt: skip
def ulysses_world(case: Case) -> Iterator[Found]:
    """Above the number of GPUs verl stops with an assertion without text; a size that does not divide them leaves
    ranks out of the mesh, and the others hang."""
    for role in case.engines:
        key = case.ulysses_key(role)
        if case.number(key, 1) < 1:
            text = f"sequence parallel size {case.number(key)} of the {role} is below 1: verl divides the GPUs by it."
            yield Found(key, text, (_set_size(case, (role,), 1),))
            continue
        size, ranks = case.ulysses(role), case.ranks(role)
        if size > ranks or ranks % size:
            text = f"sequence parallel size {size} of the {role} does not divide {ranks} GPUs."
            yield Found(
                case.ulysses_key(role), f"{text} verl stops without a reason, or hangs.", _smaller(case, role, size)
            )


@rule(
    "ulysses-heads", "the sequence parallel size divides the attention heads", Severity.ERROR, Stage.WORKERS,
    ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",),
    "verl 0.9.1 models/transformers/monkey_patch.py:343-350",
)  # fmt: skip
def ulysses_heads(case: Case) -> Iterator[Found]:
    """Ulysses trades sequence for heads: attention heads must divide by the size, and key-value heads must divide by
    it or divide it (then verl repeats them)."""
    for role in case.engines:
        size, architecture = case.ulysses(role), case.architecture(role)
        if size == 1 or architecture is None:
            continue
        refusal = heads_refusal(architecture, size)
        if refusal:
            yield Found(case.ulysses_key(role), f"{refusal}. Workers of the {role} stop when they build the model.",
                        _smaller(case, role, size))  # fmt: skip


@rule(
    "ulysses-remove-padding", "Ulysses needs remove padding", Severity.ERROR, Stage.WORKERS,
    (f"{MODEL}.use_remove_padding",),
    "verl 0.9.1 workers/config/actor.py:331-341, workers/engine/fsdp/transformer_impl.py:148-152",
)  # fmt: skip
def ulysses_remove_padding(case: Case) -> Iterator[Found]:
    """verl's first check sees only the deprecated key of the actor; with `fsdp_config`'s key alone the run dies when
    workers start."""
    padded: dict[str, list[Engine]] = {}
    for role in case.engines:
        if case.ulysses(role) > 1 and not case.removes_padding(role):
            key = "critic.model.use_remove_padding" if role == "critic" else f"{MODEL}.use_remove_padding"
            padded.setdefault(key, []).append(role)
    for key, roles in padded.items():
        early = "actor" in roles and case.number(f"{ACTOR}.ulysses_sequence_parallel_size", 1) > 1
        yield Found(
            key,
            f"the sequence parallel size of {' and '.join(roles)} is {case.ulysses(roles[0])}, which needs sequences "
            "without padding.",
            (set_key(key, True), _set_size(case, roles, 1)),
            stage=Stage.DRIVER if early else Stage.WORKERS,
        )


@rule(
    "ulysses-attention", "Ulysses needs flash attention", Severity.ERROR, Stage.SILENT,
    (f"{MODEL}.override_config.attn_implementation",), "verl 0.9.1 models/transformers/monkey_patch.py:545-552",
)  # fmt: skip
def ulysses_attention(case: Case) -> Iterator[Found]:
    """verl exchanges heads inside flash attention only. With sdpa or eager the run goes on without an error, each
    rank attends to its own slice of the sequence, and the log-probabilities are wrong (0.1 off in fp32)."""
    key = f"{MODEL}.override_config.attn_implementation"
    split: list[Engine] = [role for role in case.engines if role != "critic" and case.ulysses(role) > 1]
    if split and "flash" not in case.attention:
        yield Found(
            key,
            f"with sequence parallel size {case.ulysses(split[0])} of {' and '.join(split)}, {case.attention} sees a "
            "slice of each sequence: verl trains on wrong log-probabilities without an error.",
            (set_key(key, "flash_attention_2"), _set_size(case, split, 1)),
        )


@rule(
    "ulysses-ref-differs", "the reference model runs with the actor's sequence parallel size", Severity.WARNING,
    Stage.SILENT, (f"{REF}.fsdp_config.ulysses_sequence_parallel_size",),
    "verl 0.9.1 trainer/config/ref/dp_ref.yaml, workers/config/actor.py:328",
)  # fmt: skip
def ulysses_ref_differs(case: Case) -> Iterator[Found]:
    """The reference follows `actor.ulysses_sequence_parallel_size` (deprecated), not the actor's `fsdp_config`: set
    there alone, the reference holds whole sequences and may run out of memory where the actor does not."""
    actor, ref = case.ulysses("actor"), case.ulysses("ref")
    if case.uses_ref and actor > 1 and ref == 1:
        text = f"the actor splits sequences over {actor} ranks, the reference holds them whole."
        yield Found(case.engine_key("ref", "ulysses_sequence_parallel_size"), text, (_set_size(case, ("ref",), actor),))


@rule(
    "ulysses-critic-dead-key", "the critic reads its sequence parallel size from critic.fsdp", Severity.WARNING,
    Stage.SILENT, ("critic.ulysses_sequence_parallel_size",), "verl 0.9.1 workers/config/critic.py (FSDPCriticConfig)",
)  # fmt: skip
def ulysses_critic_dead_key(case: Case) -> Iterator[Found]:
    """`critic.ulysses_sequence_parallel_size` is never copied to the engine."""
    key = "critic.ulysses_sequence_parallel_size"
    given = case.number(key, 1)
    if case.uses_critic and case.config.schema.minor >= (0, 8) and given > 1 and case.ulysses("critic") != given:
        yield Found(key, "the critic's engine does not read it.", (_set_size(case, ("critic",), given),))
