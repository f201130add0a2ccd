"""Losses, KL terms, optimizer: names and numbers that verl looks up late."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from wizard.findings import Fix, Severity, Stage
from wizard.rules.case import OWNERS, Case
from wizard.rules.registry import Found, rule, set_key
from wizard.verl.keys import ACTOR, MODEL

AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
"""verl 0.9.1 `workers/config/actor.py:212`."""
POLICY_LOSSES = (
    "vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo",
    "bypass_mode",
)  # fmt: skip
"""verl 0.9.1 `trainer/ppo/core_algos.py`, `@register_policy_loss`."""
KL_FORMS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
"""verl 0.9.1 `trainer/ppo/core_algos.py`, `kl_penalty_forward`; a `+` may follow."""
SCHEDULES = ("constant", "cosine")


def _nearest(key: str, value: object, known: Sequence[str], otherwise: str) -> tuple[Fix, ...]:
    near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.5)
    return (set_key(key, near[0] if near else otherwise),)


@rule(
    "loss-aggregation", "the loss is aggregated in a way verl knows", Severity.ERROR, Stage.DRIVER,
    (f"{ACTOR}.loss_agg_mode",), "verl 0.9.1 workers/config/actor.py:212-220",
)  # fmt: skip
def loss_aggregation(case: Case) -> Iterator[Found]:
    """The actor's dataclass refuses any other name before Ray starts."""
    key = f"{ACTOR}.loss_agg_mode"
    value = case.get(key)
    if case.config.schema.minor >= (0, 9) and value is not None and value not in AGGREGATIONS:
        yield Found(key, f"verl knows {', '.join(AGGREGATIONS)}.", _nearest(key, value, AGGREGATIONS, "token-mean"))


@rule(
    "policy-loss-unknown", "the policy loss is one of verl's", Severity.ERROR, Stage.FIRST_STEP,
    (f"{ACTOR}.policy_loss.loss_mode",), "verl 0.9.1 trainer/ppo/core_algos.py:70-85 (get_policy_loss_fn)",
)  # fmt: skip
def policy_loss_unknown(case: Case) -> Iterator[Found]:
    """Looked up in a registry at the first update, after the whole start-up and the first rollout."""
    key = f"{ACTOR}.policy_loss.loss_mode"
    value = case.get(key)
    # Someone's own loss can be registered by an external module.
    own = case.get(f"{MODEL}.external_lib") or case.config.schema.minor < (0, 9)
    if isinstance(value, str) and value not in POLICY_LOSSES and not own:
        yield Found(key, "verl knows no such policy loss.", _nearest(key, value, POLICY_LOSSES, "vanilla"))


@rule(
    "kl-form-unknown", "the KL estimate is one of verl's", Severity.ERROR, Stage.FIRST_STEP,
    (f"{ACTOR}.kl_loss_type", "algorithm.kl_penalty"),
    "verl 0.9.1 trainer/ppo/core_algos.py:2188-2251 (kl_penalty, kl_penalty_forward)",
)  # fmt: skip
def kl_form_unknown(case: Case) -> Iterator[Found]:
    """Any other name, and `full`, raise NotImplementedError without a text at the first step."""
    wanted = {f"{ACTOR}.kl_loss_type": f"{ACTOR}.use_kl_loss", "algorithm.kl_penalty": "algorithm.use_kl_in_reward"}
    for key, switch in wanted.items():
        value = case.get(key)
        if case.flag(switch) and isinstance(value, str) and value.removesuffix("+") not in KL_FORMS:
            text = f"verl knows {', '.join(KL_FORMS)}, each also with a + behind."
            yield Found(key, text, _nearest(key, value, KL_FORMS, "low_var_kl"))


@rule(
    "kl-controller", "the KL controller is fixed or adaptive", Severity.ERROR, Stage.TRAINER,
    ("algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon"),
    "verl 0.9.1 trainer/ppo/core_algos.py:189-212 (get_kl_controller)",
)  # fmt: skip
def kl_controller(case: Case) -> Iterator[Found]:
    """It is built when the KL penalty is part of the reward."""
    if not case.flag("algorithm.use_kl_in_reward"):
        return
    key, horizon = "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon"
    kind = case.get(key)
    if kind not in ("fixed", "adaptive"):
        yield Found(key, "verl knows fixed and adaptive.", (set_key(key, "fixed"),))
    elif kind == "adaptive" and case.number(horizon, 1) <= 0:
        yield Found(horizon, "the adaptive controller divides by it.", (set_key(horizon, 10000),))


@rule(
    "dual-clip", "dual clipping has a bound above 1", Severity.ERROR, Stage.FIRST_STEP,
    (f"{ACTOR}.clip_ratio_c",), "verl 0.9.1 trainer/ppo/core_algos.py:1249 and 1331",
)  # fmt: skip
def dual_clip(case: Case) -> Iterator[Found]:
    """The vanilla loss asserts it at the first update."""
    key, value = f"{ACTOR}.clip_ratio_c", case.get(f"{ACTOR}.clip_ratio_c")
    if case.get(f"{ACTOR}.policy_loss.loss_mode", "vanilla") == "vanilla" and _is_number(value) and value <= 1:
        yield Found(key, "it bounds the ratio from above and must be greater than 1.", (set_key(key, 3.0),))


@rule(
    "gdpo-reward-keys", "GDPO names its rewards", Severity.ERROR, Stage.FIRST_STEP,
    ("algorithm.gdpo_reward_keys",), "verl 0.9.1 trainer/ppo/core_algos.py:412-417",
)  # fmt: skip
def gdpo_reward_keys(case: Case) -> Iterator[Found]:
    """GDPO normalises each reward by itself; the key is not in verl's YAML (+ on the command line)."""
    key = "algorithm.gdpo_reward_keys"
    if case.get("algorithm.adv_estimator") == "gdpo" and not case.get(key):
        text = "GDPO wants the names of the rewards that compute_score returns; verl stops at the first advantage."
        yield Found(key, text, (set_key("algorithm.adv_estimator", "grpo", "GRPO, which sums the rewards"),))


@rule(
    "lr-schedule", "the learning rate schedule is constant or cosine", Severity.ERROR, Stage.DRIVER,
    (f"{ACTOR}.optim.lr_scheduler_type", f"{ACTOR}.optim.warmup_style"),
    "verl 0.9.1 workers/config/optimizer.py:114-123",
)  # fmt: skip
def lr_schedule(case: Case) -> Iterator[Found]:
    """A bare assertion of the optimizer's dataclass."""
    for role in case.trained:
        for name in ("lr_scheduler_type", "warmup_style"):
            key = f"{OWNERS[role]}.optim.{name}"
            value = case.get(key)
            if value is not None and value not in SCHEDULES:
                yield Found(key, "verl knows constant and cosine.", _nearest(key, value, SCHEDULES, "constant"))


@rule(
    "clip-grad-unset", "gradients have a clipping norm", Severity.ERROR, Stage.FIRST_STEP,
    (f"{ACTOR}.optim.clip_grad",), "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:795",
)  # fmt: skip
def clip_grad_unset(case: Case) -> Iterator[Found]:
    """The optimizer step asserts that it is not null; to switch clipping off, give a large norm."""
    for role in case.trained:
        key = f"{OWNERS[role]}.optim.clip_grad"
        old = case.get(f"{OWNERS[role]}.optim.grad_clip")
        if key in case.config and case.get(key) is None and old is None:
            yield Found(key, "null stops the first optimizer step.", (set_key(key, 1.0),))


@rule(
    "grad-clip-dead", "gradients are clipped by optim.clip_grad", Severity.WARNING, Stage.SILENT,
    (f"{ACTOR}.grad_clip", "critic.grad_clip"),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:795-800 (reads optimizer_config.clip_grad)",
)  # fmt: skip
def grad_clip_dead(case: Case) -> Iterator[Found]:
    """`actor.grad_clip` and `critic.grad_clip` were read by the workers of 0.7; no FSDP engine has since."""
    if case.config.schema.minor < (0, 8):
        return
    for role in case.trained:
        old, new = f"{OWNERS[role]}.grad_clip", f"{OWNERS[role]}.optim.clip_grad"
        value = case.get(old)
        if case.config.is_given(old) and _is_number(value) and value != case.get(new):
            yield Found(old, f"nothing reads it; {new} is {case.get(new)}.", (set_key(new, value),))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
