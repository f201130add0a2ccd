"""Batch sizes: what has to divide what, and which of it verl checks."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wizard.findings import Change, Fix, Severity, Stage
from wizard.rules.case import OWNERS, Case, Engine
from wizard.rules.registry import Found, rule, set_key
from wizard.verl.keys import ACTOR, REF, ROLLOUT

TRAIN = "data.train_batch_size"
MINI = f"{ACTOR}.ppo_mini_batch_size"


def _next_multiple(value: int, step: int) -> int:
    return max(step, -(-value // step) * step)


def _sure(case: Case) -> Severity:
    """Return how sure a fault of the first step is: launch scripts often leave the number of GPUs to the person."""
    return Severity.ERROR if case.gpus_are_known else Severity.WARNING


def _coprime_part(ranks: int, responses: int) -> int:
    """Return what a number of prompts must be a multiple of, so that prompts × n divides over `ranks`."""
    return ranks // math.gcd(ranks, responses)


@rule(
    "train-batch-divisible", "train batch × n divides over the GPUs", Severity.ERROR, Stage.DRIVER,
    (TRAIN, f"{ROLLOUT}.n"), "verl 0.9.1 utils/config.py:103-127 (validate_config)",
)  # fmt: skip
def train_batch_divisible(case: Case) -> Iterator[Found]:
    """Without dynamic batching verl asserts it before Ray starts. With dynamic batching it skips the check, and the
    v1 trainer fills the batch up with samples that count for nothing."""
    train, ranks = case.number(TRAIN), case.world_size
    if not train or train * case.responses % ranks == 0:
        return
    better = _next_multiple(train, _coprime_part(ranks, case.responses))
    fixes = (set_key(TRAIN, better),)
    samples = f"{train} prompts × {case.responses} responses = {train * case.responses} samples"
    if not case.dynamic:
        yield Found(TRAIN, f"{samples} do not divide over {ranks} GPUs; verl stops with an assertion.", fixes)
    else:
        text = f"{samples} do not divide over {ranks} GPUs. Dynamic batching skips verl's check; empty samples fill up."
        yield Found(TRAIN, text, fixes, Severity.WARNING, Stage.SILENT)


@rule(
    "mini-batch-larger", "the mini-batch is not larger than the train batch", Severity.ERROR, Stage.DRIVER,
    (MINI, "critic.ppo_mini_batch_size", TRAIN), "verl 0.9.1 workers/config/actor.py:224-229, critic.py:124-129",
)  # fmt: skip
def mini_batch_larger(case: Case) -> Iterator[Found]:
    """Both count prompts. Without dynamic batching the config's dataclass refuses it; with it, verl pads the step up
    to one mini-batch, so most of the update is spent on empty samples."""
    train = case.number(TRAIN)
    for role in case.trained:
        key = f"{OWNERS[role]}.ppo_mini_batch_size"
        mini = case.number(key)
        if not train or mini <= train:
            continue
        fixes = (set_key(key, train), set_key(TRAIN, _next_multiple(mini, 1)))
        dynamic = case.flag(f"{OWNERS[role]}.use_dynamic_bsz")
        text = f"a step has {train} prompts, a mini-batch of the {role} {mini}"
        if not dynamic:
            yield Found(key, f"{text}: verl refuses the config.", fixes)
        else:
            yield Found(key, f"{text}: verl pads every step to {mini} prompts.", fixes, Severity.WARNING, Stage.SILENT)


@rule(
    "mini-batch-divisible", "mini-batch × n divides over the data-parallel ranks", Severity.ERROR, Stage.FIRST_STEP,
    (MINI, "critic.ppo_mini_batch_size"), "verl 0.9.1 workers/engine_workers.py:267, trainer/ppo/v1/trainer_base.py",
)  # fmt: skip
def mini_batch_divisible(case: Case) -> Iterator[Found]:
    """Checked only when the first update starts, minutes after the launch."""
    for role in case.trained:
        key = f"{OWNERS[role]}.ppo_mini_batch_size"
        mini, parallel = case.number(key), case.data_parallel(role)
        if not mini or mini * case.responses % parallel == 0:
            continue
        better = _next_multiple(mini, _coprime_part(parallel, case.responses))
        yield Found(
            key,
            f"{mini} prompts × {case.responses} responses do not divide over {parallel} data-parallel ranks of the "
            f"{role}; verl stops at the first update.",
            (set_key(key, better),),
            _sure(case),
        )


@rule(
    "micro-batch-divisible", "the rank's mini-batch divides into micro-batches", Severity.ERROR, Stage.FIRST_STEP,
    (f"{ACTOR}.ppo_micro_batch_size_per_gpu",), "verl 0.9.1 workers/engine/utils.py:122-127",
)  # fmt: skip
def micro_batch_divisible(case: Case) -> Iterator[Found]:
    """Without dynamic batching, each rank cuts its share of a mini-batch into micro-batches of one size."""
    key = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    micro, mini, parallel = case.number(key), case.number(MINI), case.data_parallel("actor")
    samples = mini * case.responses
    if case.dynamic or not micro or not mini or samples % parallel or samples // parallel % micro == 0:
        return
    share = samples // parallel
    smaller = max(size for size in range(1, min(micro, share) + 1) if share % size == 0)
    text = f"a rank's share of a mini-batch is {share} samples, which do not divide into micro-batches of {micro}."
    yield Found(key, f"{text} verl stops at the first update.", (set_key(key, smaller),), _sure(case))


@rule(
    "log-prob-micro-divisible", "the rank's step divides into log-prob micro-batches", Severity.ERROR, Stage.FIRST_STEP,
    (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{REF}.log_prob_micro_batch_size_per_gpu"),
    "verl 0.9.1 workers/engine/utils.py:122-127, trainer/ppo/v1/trainer_base.py:1589-1606",
)  # fmt: skip
def log_prob_micro_divisible(case: Case) -> Iterator[Found]:
    """Without dynamic batching the padded step is cut into log-prob micro-batches of one size."""
    keys: dict[str, Engine] = {f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "actor"}
    if "ref" in case.engines:
        keys[f"{REF}.log_prob_micro_batch_size_per_gpu"] = "ref"
    for key, role in keys.items():
        micro, parallel = case.number(key), case.data_parallel(role)
        if case.dynamic or not micro or micro == 1:
            continue
        share, rest = divmod(case.padded_batch, parallel)
        if rest or share % micro:
            # Ranks of a role on GPUs of its own may get shares of two sizes.
            sizes = range(1, min(micro, share) + 1)
            smaller = 1 if rest else max(size for size in sizes if share % size == 0)
            shares = f"{share} or {share + 1}" if rest else str(share)
            text = f"a rank scores {shares} samples a step, which do not divide into micro-batches of {micro}."
            yield Found(key, f"{text} verl stops at the first step.", (set_key(key, smaller),), _sure(case))


@rule(
    "score-batch-divisible", "a step divides over a role's own GPUs", Severity.ERROR, Stage.FIRST_STEP,
    (TRAIN,), "verl 0.8.0 protocol.py (DataProto.chunk), utils/tensordict_utils.py (chunk_tensordict)",
)  # fmt: skip
def score_batch_divisible(case: Case) -> Iterator[Found]:
    """Reference and critic score the whole step. On GPUs of their own they have another number of ranks than verl's
    checks know. The v1 trainer deals out uneven shares; the trainers before it stop."""
    samples = case.number(TRAIN) * case.responses
    for role in case.engines:
        parallel = case.data_parallel(role)
        if case.is_v1 or role not in case.facts.ranks or samples % parallel == 0:
            continue
        step = math.lcm(_coprime_part(parallel, case.responses), _coprime_part(case.world_size, case.responses))
        text = f"{samples} samples do not divide over the {parallel} data-parallel ranks of the {role}: verl stops."
        yield Found(TRAIN, text, (set_key(TRAIN, _next_multiple(case.number(TRAIN), step)),))


_MICRO = (
    (ACTOR, "ppo_micro_batch_size", 4),
    (ROLLOUT, "log_prob_micro_batch_size", 8),
    (REF, "log_prob_micro_batch_size", 8),
    ("critic", "ppo_micro_batch_size", 4),
)


@rule(
    "micro-batch-unset", "exactly one micro-batch size is given", Severity.ERROR, Stage.DRIVER,
    tuple(f"{owner}.{name}_per_gpu" for owner, name, _ in _MICRO),
    "verl 0.9.1 utils/config.py:168-182, workers/config/actor.py:199-210, critic.py:107-156",
)  # fmt: skip
def micro_batch_unset(case: Case) -> Iterator[Found]:
    """verl's defaults leave all of them null and dynamic batching off, so that even the unchanged defaults fail."""
    for owner, name, size in _MICRO:
        if (owner == REF and not case.uses_ref) or (owner == "critic" and not case.uses_critic):
            continue
        # The critic's own switch decides for the critic, the actor's for all others.
        if case.flag("critic.use_dynamic_bsz") if owner == "critic" else case.dynamic:
            continue
        per_gpu, total = f"{owner}.{name}_per_gpu", f"{owner}.{name}"
        if case.get(per_gpu) is None and case.get(total) is None:
            fixes = (set_key(per_gpu, size), set_key(f"{ACTOR}.use_dynamic_bsz", True, "dynamic batching"))
            yield Found(per_gpu, f"neither it nor {total} is set, and verl wants exactly one of them.", fixes)
        elif case.get(per_gpu) is not None and case.get(total) is not None:
            # The critic's size per GPU follows its total, so that the total alone counts as both.
            changes = [Change(total, None)]
            if not case.config.is_given(per_gpu):
                changes.append(Change(per_gpu, max(1, case.number(total) // case.world_size)))
            text = f"both it and {per_gpu} are set, and verl wants exactly one."
            yield Found(total, text, (Fix(f"only {name}_per_gpu", tuple(changes)),))


@rule(
    "micro-batch-total", "micro-batches are given per GPU", Severity.ERROR, Stage.WORKERS,
    (f"{ACTOR}.ppo_micro_batch_size", f"{ROLLOUT}.log_prob_micro_batch_size"),
    "verl 0.9.1 workers/engine_workers.py:633-637",
)  # fmt: skip
def micro_batch_total(case: Case) -> Iterator[Found]:
    """The deprecated total over all GPUs passes verl's first check; workers then want the size per GPU."""
    if case.dynamic or case.config.schema.minor < (0, 8):
        return
    for owner, name in ((ACTOR, "ppo_micro_batch_size"), (ROLLOUT, "log_prob_micro_batch_size")):
        total, per_gpu = f"{owner}.{name}", f"{owner}.{name}_per_gpu"
        value = case.number(total)
        if value and case.get(per_gpu) is None:
            each = max(1, value // case.world_size)
            fix = Fix(f"{name}_per_gpu = {each}", (*set_key(total, None).changes, *set_key(per_gpu, each).changes))
            yield Found(total, f"the total over all GPUs is no longer read: workers need {per_gpu}.", (fix,))


@rule(
    "train-mini-multiple", "the train batch is a multiple of the mini-batch", Severity.WARNING, Stage.SILENT,
    (TRAIN, MINI), "verl 0.9.1 trainer/ppo/v1/trainer_base.py:1589-1606; utils/tensordict_utils.py:588",
)  # fmt: skip
def train_mini_multiple(case: Case) -> Iterator[Found]:
    """The v1 trainer fills the last mini-batch with empty samples; the older trainer stops."""
    train, mini = case.number(TRAIN), case.number(MINI)
    if train and mini and train > mini and train % mini:
        better = _next_multiple(train, mini)
        text = f"{train} prompts are not a multiple of the mini-batch of {mini}"
        if case.is_v1:
            yield Found(TRAIN, f"{text}: the last update of a step is filled up with samples that count for nothing.",
                        (set_key(TRAIN, better),))  # fmt: skip
        else:
            yield Found(TRAIN, f"{text}: verl stops at the first update.", (set_key(TRAIN, better),),
                        Severity.ERROR, Stage.FIRST_STEP)  # fmt: skip


@rule(
    "token-cap", "the token budget holds the longest sequence", Severity.ERROR, Stage.FIRST_STEP,
    (f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
     f"{REF}.log_prob_max_token_len_per_gpu"), "verl 0.9.1 utils/seqlen_balancing.py:384",
)  # fmt: skip
def token_cap(case: Case) -> Iterator[Found]:
    """With dynamic batching, budget × Ulysses size has to hold prompt + response. The run stops at the first
    sequence that is longer, which may be hours in."""
    keys: list[tuple[str, Engine, str]] = [(f"{ACTOR}.ppo_max_token_len_per_gpu", "actor", f"{ACTOR}.use_dynamic_bsz")]
    switch = "log_prob_use_dynamic_bsz"
    keys.append((f"{ROLLOUT}.log_prob_max_token_len_per_gpu", "actor", f"{ROLLOUT}.{switch}"))
    if "ref" in case.engines:
        keys.append((f"{REF}.log_prob_max_token_len_per_gpu", "ref", f"{REF}.{switch}"))
    for key, role, dynamic in keys:
        cap, share = case.number(key), case.ulysses(role)
        if case.flag(dynamic) and cap and cap * share < case.longest:
            needed = -(-case.longest // share)
            text = f"prompt + response reach {case.longest} tokens, the budget × Ulysses size {cap * share}."
            yield Found(key, f"{text} verl stops at the first longer sequence.", (set_key(key, needed),))


@rule(
    "token-cap-unset", "dynamic batching has token budgets", Severity.ERROR, Stage.WORKERS,
    (f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_max_token_len_per_gpu"),
    "verl 0.9.1 workers/engine_workers.py:633-634",
)  # fmt: skip
def token_cap_unset(case: Case) -> Iterator[Found]:
    """Workers assert that neither budget is null, without a message."""
    if not case.dynamic or case.config.schema.minor < (0, 8):
        return
    for key in (f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_max_token_len_per_gpu"):
        if case.get(key) is None:
            yield Found(key, "null gives dynamic batching no budget: workers stop.",
                        (set_key(key, max(16384, case.longest)),))  # fmt: skip


@rule(
    "critic-token-cap", "the critic's token budget holds the longest sequence", Severity.ERROR, Stage.FIRST_STEP,
    ("critic.ppo_infer_max_token_len_per_gpu",), "verl 0.9.1 trainer/ppo/v1/trainer_base.py:267-268",
)  # fmt: skip
def critic_token_cap(case: Case) -> Iterator[Found]:
    """The critic always packs dynamically, and the budget of this key bounds training too (32768 when absent)."""
    if not case.uses_critic or not case.is_v1:
        return
    key = "critic.ppo_infer_max_token_len_per_gpu"
    cap, share = case.number(key, 32768), case.ulysses("critic")
    if cap * share < case.longest:
        text = f"prompt + response reach {case.longest} tokens, the critic's budget {cap * share}."
        yield Found(key, f"{text} verl stops at the first longer sequence.", (set_key(key, -(-case.longest // share)),))


@rule(
    "critic-dead-sizes", "critic sizes that nothing reads", Severity.WARNING, Stage.SILENT,
    ("critic.ppo_max_token_len_per_gpu", "critic.ppo_micro_batch_size_per_gpu"),
    "verl 0.9.1 trainer/ppo/v1/trainer_base.py:267-268",
)  # fmt: skip
def critic_dead_sizes(case: Case) -> Iterator[Found]:
    """The v1 trainer bounds the critic by `critic.ppo_infer_max_token_len_per_gpu` alone."""
    if not case.uses_critic or not case.is_v1:
        return
    infer = "critic.ppo_infer_max_token_len_per_gpu"
    key = "critic.ppo_max_token_len_per_gpu"
    if case.config.is_given(key) and not case.config.is_given(infer):
        text = f"the critic's training does not read it; {infer} (32768 when absent) bounds its memory."
        yield Found(key, text, (set_key(infer, case.number(key, 32768)),))


@rule(
    "dynamic-switches-differ", "actor and log-prob agree on dynamic batching", Severity.ERROR, Stage.WORKERS,
    (f"{ROLLOUT}.log_prob_use_dynamic_bsz",), "verl 0.9.1 workers/engine_workers.py:616",
)  # fmt: skip
def dynamic_switches_differ(case: Case) -> Iterator[Found]:
    """A bare assertion in the worker, without a message."""
    key = f"{ROLLOUT}.log_prob_use_dynamic_bsz"
    if case.config.schema.minor >= (0, 8) and case.flag(key) != case.dynamic:
        text = f"{ACTOR}.use_dynamic_bsz is {str(case.dynamic).lower()}; workers assert that both are equal."
        yield Found(key, text, (set_key(key, case.dynamic),))
