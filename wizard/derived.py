"""Numbers that follow from the Plan's batch sizes, as verl 0.9.1 works them out. Pure.

Source: verl 0.9.1 `workers/engine_workers.py` (mini-batch per rank), `workers/engine/utils.py` (micro-batches),
`utils/seqlen_balancing.py` (`rearrange_micro_batches`), `trainer/ppo/v1/trainer_base.py` (padding).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wizard.plan import Plan


@dataclass(frozen=True)
class Derived:
    """What one training step comes to."""

    samples_per_step: int
    """Prompts × responses."""
    padded_samples: int
    """The same after verl filled the step up to whole mini-batches."""
    data_parallel: int
    """Ranks with data of their own: GPUs / Ulysses size."""
    samples_per_rank: int
    updates_per_step: int
    """Optimizer updates a step."""
    mini_samples_per_rank: int
    """Samples of one update on one data-parallel rank."""
    micro_batches: int
    """Forward-backward passes an update takes on a rank; with dynamic batching, for samples of full length."""
    tokens_per_micro_batch: int
    """Most tokens one pass holds on a GPU."""


def derive(plan: Plan) -> Derived:
    """Return the derived numbers; sizes that do not divide are rounded up, the rules say what verl does with them."""
    batches, n, share = plan.batches, plan.rollout.n, plan.actor.ulysses_size
    longest = plan.data.longest_sequence
    parallel = max(1, plan.world_size // share)
    samples, mini = batches.train_batch_size * n, batches.mini_batch_size * n
    unit = math.lcm(parallel, mini)
    padded = -(-samples // unit) * unit
    mini_rank = -(-mini // parallel)
    if batches.dynamic:
        tokens = batches.max_tokens_per_gpu
        # The budget of all ranks that share a sequence holds whole sequences.
        whole = max(1, tokens * share // longest)
        passes = -(-mini_rank // whole)
    else:
        tokens = -(-batches.micro_batch_size_per_gpu * longest // share)
        passes = -(-mini_rank // batches.micro_batch_size_per_gpu)
    return Derived(samples, padded, parallel, padded // parallel, padded // mini, mini_rank, passes, tokens)


def derived_text(numbers: Derived) -> str:
    """Return the numbers as two sentences."""
    filled = f" ({numbers.padded_samples} after padding)" if numbers.padded_samples != numbers.samples_per_step else ""
    return (
        f"A step: {numbers.samples_per_step} samples{filled}, {numbers.samples_per_rank} on each of "
        f"{numbers.data_parallel} data-parallel rank{'s' * (numbers.data_parallel != 1)}, {numbers.updates_per_step} "
        f"updates. An update: {numbers.mini_samples_per_rank} samples a rank, accumulated over "
        f"{numbers.micro_batches} passes of ≤ {numbers.tokens_per_micro_batch:,} tokens."
    )


def idle_fields(plan: Plan) -> frozenset[str]:
    """Return the fields that verl does not read under this Plan: their values change nothing."""
    fixed = ("batches.micro_batch_size_per_gpu", "batches.log_prob_micro_batch_size_per_gpu")
    packed = ("batches.max_tokens_per_gpu", "batches.log_prob_max_tokens_per_gpu")
    idle = set(fixed if plan.batches.dynamic else packed)
    if "critic" not in plan.roles:
        idle |= {"batches.critic_max_tokens_per_gpu", "batches.critic_learning_rate", "model.critic_id"}
    if not plan.algorithm.use_kl_loss:
        idle.add("algorithm.kl_loss_coef")
    return frozenset(idle)


def ulysses_choices(plan: Plan) -> tuple[tuple[int, str], ...]:
    """Return every size up to the world size (and the heads) with why it is refused, an empty text if it is not."""
    # Here, as the first screen needs none of the rules.
    from wizard.rules.parallel import ulysses_refusal

    heads = plan.architecture.num_attention_heads if plan.architecture else plan.world_size
    largest = min(plan.world_size, max(1, heads))
    sizes = sorted({*(size for size in range(1, largest + 1) if largest <= 16 or plan.world_size % size == 0)})
    return tuple((size, ulysses_refusal(plan.architecture, plan.world_size, size)) for size in sizes)


def ulysses_text(plan: Plan) -> str:
    """Return which Ulysses sizes work, and why each other one does not."""
    choices = ulysses_choices(plan)
    allowed = ", ".join(str(size) for size, refusal in choices if not refusal)
    reasons: dict[str, list[str]] = {}
    for size, refusal in choices:
        if refusal:
            reasons.setdefault(refusal.removesuffix(f" by {size}"), []).append(str(size))
    refused = "; ".join(f"{', '.join(sizes)}: {reason}" for reason, sizes in reasons.items())
    return f"Ulysses sizes that work: {allowed}." + (f" Not {refused}." if refused else "")
