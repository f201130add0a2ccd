"""Peak memory of every phase of a training step, from the Plan alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wizard.memory.ledger import Ledger
from wizard.memory.prediction import GroupPeak, PhaseName, PhasePeak
from wizard.memory.replay import actor_update, log_prob
from wizard.memory.reserved import reserved_bytes
from wizard.memory.roles import (
    Exact,
    ScoringRole,
    TrainedRole,
    architecture_of,
    colocated,
    log_prob_step,
    role_shape,
    shard_ranks,
    update_step,
)
from wizard.memory.rollout import CUDA_CONTEXT_BYTES, WEIGHT_BUCKET_BYTES, engine_of
from wizard.memory.settings import DTYPE_BYTES
from wizard.plan import GpuGroup, Plan, Role

Residue = dict[str, int]
PLANNED = Exact()
"""Nothing fixed: the Plan's own sizes."""


def phases_of(plan: Plan, exact: Exact = PLANNED) -> Iterator[PhasePeak]:
    """Yield the peak of every phase the Plan's algorithm runs; rollout and weight sync need a known GPU.

    Raises:
        PredictionError: the model has not been inspected.
        NoUnits: verl would stop while it wraps the model.
    """
    scored = Exact(tokens=exact.tokens, loss=exact.loss)
    yield actor_update_phase(plan, exact)
    yield _scoring_phase(plan, "log_prob", scored)
    if "ref" in plan.roles:
        yield _scoring_phase(plan, "ref_log_prob", scored)
    if "critic" in plan.roles:
        critic = Exact(tokens=exact.tokens, micro_batches=exact.micro_batches)
        yield _update_phase(plan, "critic", "critic_update", critic)
    if plan.machine.gpu_memory_bytes:
        yield _rollout_phase(plan)
        yield _weight_sync_phase(plan)


def groups_of(plan: Plan, phases: tuple[PhasePeak, ...]) -> tuple[GroupPeak, ...]:
    """Return the phases by the group of GPUs they run on."""
    machine = plan.machine
    groups = plan.placement.groups or (GpuGroup(plan.roles, machine.nodes, machine.gpus_per_node),)
    return tuple(GroupPeak(group, tuple(phase for phase in phases if phase.role in group.roles)) for group in groups)


def actor_update_phase(plan: Plan, exact: Exact = PLANNED) -> PhasePeak:
    """Return the peak of the actor's update."""
    return _update_phase(plan, "actor", "actor_update", exact)


def _update_phase(plan: Plan, role: TrainedRole, name: PhaseName, exact: Exact) -> PhasePeak:
    step = exact.applied(plan, update_step(plan, role))
    ledger = actor_update(role_shape(plan, role, step.tokens), step)
    return _phase(plan, role, name, ledger)


def _scoring_phase(plan: Plan, name: PhaseName, exact: Exact) -> PhasePeak:
    # With LoRA the reference is the actor with its adapters switched off.
    role: ScoringRole = "ref" if name == "ref_log_prob" and not plan.model.lora_rank else "actor"
    step = exact.applied(plan, log_prob_step(plan, role))
    return _phase(plan, role, name, log_prob(role_shape(plan, role, step.tokens), step))


def _phase(plan: Plan, role: Role, name: PhaseName, ledger: Ledger) -> PhasePeak:
    peak = ledger.peak
    residue = _residues(plan, role)
    allocated = peak.total_bytes + sum(residue.values())
    breakdown = dict(peak.breakdown)
    for cause, size in residue.items():
        breakdown[cause] = breakdown.get(cause, 0) + size
    reserved = reserved_bytes(ledger) + sum(residue.values())
    elsewhere = _elsewhere(plan, role)
    return PhasePeak(name, allocated, max(allocated, reserved), breakdown, peak.at, role, elsewhere_bytes=elsewhere)


def _residues(plan: Plan, running: Role) -> Residue:
    """Bytes that the other trained roles on the same GPU keep there meanwhile. The reference keeps none: verl
    offloads it."""
    found: Residue = {}
    others: tuple[TrainedRole, ...] = ("actor", "critic")
    for role in others:
        if role in plan.roles and role != running and colocated(plan, running, role):
            for cause, size in _residue(plan, role).items():
                found[cause] = found.get(cause, 0) + size
    return found


def _residue(plan: Plan, role: TrainedRole) -> Residue:
    """What a trained role keeps on its GPU while it does nothing."""
    fsdp, shape = plan.fsdp(role), role_shape(plan, role)
    if fsdp.offload_policy and fsdp.strategy == "fsdp2":
        return {}
    ranks, master = shard_ranks(fsdp, plan.ranks(role)), DTYPE_BYTES[fsdp.master_dtype]
    parameters = 0 if fsdp.param_offload else master * shape.parameters // ranks
    optimizer = 0 if fsdp.optimizer_offload else 2 * master * shape.trainable // ranks
    return {cause: size for cause, size in (("parameters", parameters), ("optimizer", optimizer)) if size}


def _elsewhere(plan: Plan, role: Role) -> int:
    """Bytes outside the running role's tensors: CUDA contexts, and the engine where it shares the GPU."""
    if not plan.machine.gpu_memory_bytes:
        return 0
    if not colocated(plan, role, "rollout"):
        return CUDA_CONTEXT_BYTES
    engine = engine_of(plan, architecture_of(plan, "actor"))
    serving = 0 if plan.rollout.free_cache_engine else engine.weights_bytes + engine.kv_cache_bytes
    return 2 * CUDA_CONTEXT_BYTES + engine.graph_bytes + serving


def _rollout_phase(plan: Plan) -> PhasePeak:
    engine = engine_of(plan, architecture_of(plan, "actor"))
    breakdown = {"rollout_weights": engine.weights_bytes, "kv_cache": engine.kv_cache_bytes}
    breakdown["workspace"] = engine.graph_bytes
    for role in ("actor", "critic"):
        if role in plan.roles and colocated(plan, role, "rollout"):
            for cause, size in _residue(plan, role).items():
                breakdown[cause] = breakdown.get(cause, 0) + size
    breakdown = {cause: size for cause, size in breakdown.items() if size}
    total = sum(breakdown.values())
    contexts = (2 if colocated(plan, "actor", "rollout") else 1) * CUDA_CONTEXT_BYTES
    return PhasePeak(
        "rollout", total, total, breakdown, "generation", "rollout", engine.lacking_bytes, elsewhere_bytes=contexts
    )


def _weight_sync_phase(plan: Plan) -> PhasePeak:
    """Weights are back in the engine, its cache is not; one full tensor and one bucket stand beside them. An engine on
    GPUs of its own gets them over the network."""
    shape, fsdp = role_shape(plan, "actor"), plan.actor
    engine = engine_of(plan, architecture_of(plan, "actor"))
    master = DTYPE_BYTES[fsdp.master_dtype]
    breakdown = _residue(plan, "actor")
    staged = fsdp.param_offload and (fsdp.strategy == "fsdp" or plan.model.lora_rank > 0)
    if staged:
        # FSDP1 and LoRA load the whole shard back before they export it.
        breakdown["parameters"] = master * shape.parameters // shard_ranks(fsdp, plan.world_size)
    if colocated(plan, "actor", "critic") and "critic" in plan.roles:
        for cause, size in _residue(plan, "critic").items():
            breakdown[cause] = breakdown.get(cause, 0) + size
    # The gathered tensor is in master dtype.
    breakdown["unsharded"] = master * shape.largest_parameter
    breakdown["workspace"] = WEIGHT_BUCKET_BYTES
    contexts = CUDA_CONTEXT_BYTES
    if colocated(plan, "actor", "rollout"):
        breakdown["rollout_weights"] = engine.weights_bytes
        breakdown["workspace"] += engine.graph_bytes
        contexts += CUDA_CONTEXT_BYTES
    total = sum(breakdown.values())
    at = "largest tensor gathered"
    return PhasePeak("weight_sync", total, total, breakdown, at, "actor", elsewhere_bytes=contexts)


def largest(holds: Callable[[int], bool], highest: int) -> int:
    """Return the largest n in 1…highest for which `holds(n)`, 0 when none; `holds` must be monotone."""
    if not holds(1):
        return 0
    if holds(highest):
        return highest
    low, high = 1, highest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
