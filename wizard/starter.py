"""A first Plan for a model and a machine: values that divide, fit, and that verl's examples would choose."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from wizard.facts import Architecture, Machine
from wizard.fixing import apply_fix
from wizard.memory import PredictionError, predict
from wizard.model.resolve import resolve_model
from wizard.plan import Algorithm, AlgorithmName, Batches, Fsdp, Model, Plan, Rollout, Target, Trainer, parse_value

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
    plan = Plan(
        target=target,
        machine=machine,
        model=dataclasses.replace(settings, id=model, attention="flash_attention_2" if _has_flash(machine) else "sdpa"),
        architecture=architecture,
        algorithm=_algorithm(algorithm),
        actor=Fsdp(param_dtype="fp16" if _is_older_than_ampere(machine) else "bf16"),
        rollout=Rollout(n=_RESPONSES[algorithm]),
        trainer=Trainer(experiment_name=f"{model.rstrip('/').rsplit('/', 1)[-1].lower()}-{algorithm}"),
    )
    plan = _fitted(_with_rollout(_with_batches(plan), architecture))
    for path, text in edits:
        plan = plan.replace(path, parse_value(path, text))
    return plan


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
    ranks = plan.world_size
    step = ranks // math.gcd(ranks, plan.rollout.n)
    mini = -(-SMALLEST_MINI_BATCH // step) * step
    longest = plan.data.max_prompt_length + plan.data.max_response_length
    budget = min(LARGEST_TOKEN_BUDGET, 8 * longest)
    batches = Batches(
        train_batch_size=mini * MINI_BATCHES_A_STEP,
        mini_batch_size=mini,
        max_tokens_per_gpu=budget,
        log_prob_max_tokens_per_gpu=budget,
        critic_max_tokens_per_gpu=budget,
    )
    return dataclasses.replace(plan, batches=batches)


def _with_rollout(plan: Plan, architecture: Architecture) -> Plan:
    memory = plan.machine.gpu_memory_bytes * plan.rollout.gpu_memory_utilization * ROLLOUT_WEIGHTS_SHARE
    if not memory:
        return plan
    sizes = [
        size
        for size in range(1, plan.machine.gpus_per_node + 1)
        if plan.machine.gpus_per_node % size == 0 and architecture.num_attention_heads % size == 0
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
