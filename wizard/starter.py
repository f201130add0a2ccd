"""A first Plan for a model and a machine: values that divide, fit, and that verl's examples would choose."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from wizard.facts import Machine
from wizard.fixing import apply_fix
from wizard.memory import PredictionError, predict
from wizard.model.resolve import resolve_model
from wizard.plan import (
    Algorithm,
    AlgorithmName,
    Attention,
    Batches,
    Fsdp,
    Model,
    Plan,
    Rollout,
    Target,
    Trainer,
    parse_value,
)

MINI_BATCHES_A_STEP = 4
SMALLEST_MINI_BATCH = 64
LARGEST_TOKEN_BUDGET = 32768
ROLLOUT_WEIGHTS_SHARE = 0.6
"""Of the rollout's share of a GPU: with more, too little KV cache is left to keep the GPU busy."""
WEIGHT_BYTES = 2
REMEDIES_TRIED = 6

_RESPONSES: dict[str, int] = {"grpo": 8, "rloo": 8, "reinforce++": 8, "ppo": 1, "remax": 1}
"""Group methods need several responses a prompt; GAE and ReMax bring their own baseline."""


def starter_plan(
    model: str,
    machine: Machine,
    algorithm: AlgorithmName = "grpo",
    edits: Sequence[tuple[str, str]] = (),
    *,
    target: Target | None = None,
    settings: Model | None = None,
) -> Plan:
    """Return a Plan that starts and fits, with `edits` (Plan path, text) laid over it as they are.

    Raises:
        ModelError: the model cannot be used.
        PlanError: an edit names no field, or a value it cannot have.
    """
    target = target or Target()
    settings = settings or Model()
    architecture = resolve_model(
        model, python=target.python, revision=settings.revision, trust_remote_code=settings.trust_remote_code
    )
    plan = fitted_plan(
        Plan(
            target=target,
            machine=machine,
            model=dataclasses.replace(settings, id=model),
            architecture=architecture,
            algorithm=_algorithm(algorithm),
            trainer=Trainer(experiment_name=f"{model.rstrip('/').rsplit('/', 1)[-1].lower()}-{algorithm}"),
        )
    )
    for path, text in edits:
        plan = plan.replace(path, parse_value(path, text))
    return plan


def fitted_plan(plan: Plan) -> Plan:
    """Return the Plan with batches, rollout, attention, dtypes and offload chosen anew for its model and machine.

    What is asked for stays: model, machine, algorithm, lengths, layer classes, placement, names.
    """
    machine = plan.machine
    attention: Attention = "flash_attention_2" if _has_flash(machine) else "sdpa"
    fresh = dataclasses.replace(
        plan,
        model=dataclasses.replace(
            plan.model, attention=attention, gradient_checkpointing=True, activation_offload=False, fused_kernels=False
        ),
        actor=Fsdp(
            wrap_classes=plan.actor.wrap_classes,
            min_num_params=plan.actor.min_num_params,
            param_dtype="fp16" if _is_older_than_ampere(machine) else "bf16",
        ),
        batches=Batches(
            learning_rate=plan.batches.learning_rate, critic_learning_rate=plan.batches.critic_learning_rate
        ),
        rollout=Rollout(
            engine=plan.rollout.engine, n=_RESPONSES[plan.algorithm.name], temperature=plan.rollout.temperature
        ),
    )
    return _fitted(_with_rollout(_with_batches(fresh)))


def following(before: Plan, after: Plan) -> Plan:
    """Return `after`, fitted to its new model, machine or algorithm unless the person has set such values already."""
    if (before.machine, before.architecture, before.algorithm.name) == (
        after.machine,
        after.architecture,
        after.algorithm.name,
    ):
        return after
    own = _chosen(before)
    if own != _chosen(after) or own not in (_chosen(Plan()), _chosen(fitted_plan(before))):
        return after
    return fitted_plan(after)


def _chosen(plan: Plan) -> tuple[object, ...]:
    """Return what `fitted_plan` decides; class names follow the model, not the machine."""
    actor = dataclasses.replace(plan.actor, wrap_classes=(), min_num_params=0)
    model = plan.model
    return (
        actor,
        plan.batches,
        plan.rollout,
        (model.attention, model.gradient_checkpointing, model.activation_offload, model.fused_kernels),
    )


def _has_flash(machine: Machine) -> bool:
    return machine.gpus_per_node > 0 and not _is_older_than_ampere(machine)


def _is_older_than_ampere(machine: Machine) -> bool:
    major = machine.compute_capability.split(".")[0]
    return major.isdigit() and int(major) < 8


def _algorithm(name: AlgorithmName) -> Algorithm:
    """KL against the reference goes where verl's example of the algorithm puts it (0.9.1 `examples/*_trainer`)."""
    in_loss = name in ("grpo", "reinforce++")
    return Algorithm(name=name, use_kl_loss=in_loss, use_kl_in_reward=name in ("rloo", "remax"))


def _with_batches(plan: Plan) -> Plan:
    # Roles on GPUs of their own deal the same batches out to another number of ranks.
    ranks = math.lcm(*(plan.ranks(role) for role in plan.roles if role not in ("rollout", "reward")))
    step = ranks // math.gcd(ranks, plan.rollout.n)
    mini = -(-SMALLEST_MINI_BATCH // step) * step
    longest = plan.data.longest_sequence
    budget = min(LARGEST_TOKEN_BUDGET, 8 * longest)
    batches = dataclasses.replace(
        plan.batches,
        train_batch_size=mini * MINI_BATCHES_A_STEP,
        mini_batch_size=mini,
        max_tokens_per_gpu=budget,
        log_prob_max_tokens_per_gpu=budget,
        critic_max_tokens_per_gpu=budget,
    )
    return dataclasses.replace(plan, batches=batches)


def _with_rollout(plan: Plan) -> Plan:
    architecture = plan.architecture
    memory = plan.machine.gpu_memory_bytes * plan.rollout.gpu_memory_utilization * ROLLOUT_WEIGHTS_SHARE
    if not memory or architecture is None:
        return plan
    sizes = [
        size
        for size in range(1, plan.gpus_of_node("rollout") + 1)
        if plan.gpus_of_node("rollout") % size == 0 and architecture.num_attention_heads % size == 0
    ]
    weights = WEIGHT_BYTES * architecture.parameters
    enough = next((size for size in sizes if weights / size <= memory), sizes[-1])
    return dataclasses.replace(plan, rollout=dataclasses.replace(plan.rollout, tensor_parallel_size=enough))


def _fitted(plan: Plan) -> Plan:
    """Apply the predictor's smallest remedies until the Plan fits, or nothing more helps."""
    for _ in range(REMEDIES_TRIED):
        try:
            prediction = predict(plan)
        except PredictionError:
            return plan
        if prediction.fits is not False or not prediction.remedies:
            return plan
        plan = apply_fix(plan, prediction.remedies[0])
    return plan
