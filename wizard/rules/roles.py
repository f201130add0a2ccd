"""Strategies, attention, critic, LoRA, remote code: what a role's model needs."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.findings import Severity, Stage
from wizard.rules.case import Case
from wizard.rules.registry import Found, rule, set_key
from wizard.verl.keys import MODEL

ATTENTION = f"{MODEL}.override_config.attn_implementation"
STRATEGIES = ("fsdp", "fsdp2")
ESTIMATORS = (
    "gae", "gdpo", "gpg", "grpo", "grpo_passk", "grpo_vectorized", "opo", "optimal_token_baseline",
    "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo", "rloo_vectorized",
    "tir_optimal_token_baseline",
)  # fmt: skip
"""verl 0.9.1 `trainer/ppo/core_algos.py`, AdvantageEstimator."""
HOST_WARNING_SHARE, HOST_ERROR_SHARE = 0.70, 0.95
LOAD_BYTES = {"fp32": 4, "float32": 4, "32": 4}
"""Of `model_dtype`, the dtype models are loaded in; the half-precision ones take 2."""


@rule(
    "strategy-unknown", "the strategy is one of verl's engines", Severity.ERROR, Stage.WORKERS,
    ("actor_rollout_ref.actor.strategy", "critic.strategy"), "verl 0.9.1 workers/engine/base.py:401",
)  # fmt: skip
def strategy_unknown(case: Case) -> Iterator[Found]:
    """The dataclass checks another key, so that a misspelt strategy is found only when workers start."""
    known = (*STRATEGIES, "fsdp_turbo", "megatron", "veomni", "torchtitan", "automodel", "mindspeed")
    for role in case.engines:
        key = case.strategy_key(role)
        if case.strategy(role) not in known:
            yield Found(key, "verl has no such engine; workers stop with `Unknown backend`.", (set_key(key, "fsdp2"),))


@rule(
    "strategy-overwritten", "fsdp_config.strategy is overwritten by the role's strategy", Severity.WARNING,
    Stage.SILENT, ("actor_rollout_ref.actor.fsdp_config.strategy",),
    "verl 0.9.1 workers/config/actor.py:325, critic.py:219",
)  # fmt: skip
def strategy_overwritten(case: Case) -> Iterator[Found]:
    """`actor.strategy` decides; a value in `fsdp_config` is replaced without a word."""
    if case.config.schema.minor < (0, 8):
        return
    for role in case.engines:
        key = case.engine_key(role, "strategy")
        if case.config.is_given(key) and case.get(key) != case.strategy(role):
            decides = case.strategy_key(role)
            yield Found(key, f"{decides} = {case.strategy(role)} overwrites it.", (set_key(decides, case.get(key)),))


@rule(
    "critic-strategy", "the critic's strategy is its own", Severity.NOTE, Stage.SILENT, ("critic.strategy",),
    "verl 0.9.1 trainer/config/critic/dp_critic.yaml",
)  # fmt: skip
def critic_strategy(case: Case) -> Iterator[Found]:
    """The reference follows the actor's strategy, the critic stays with fsdp unless told."""
    key = "critic.strategy"
    actor = case.strategy("actor")
    if case.uses_critic and not case.config.is_given(key) and case.strategy("critic") != actor and actor in STRATEGIES:
        yield Found(key, f"the actor runs {actor}; the critic does not follow it.", (set_key(key, actor),))


@rule(
    "estimator-unknown", "the advantage estimator is one of verl's", Severity.ERROR, Stage.FIRST_STEP,
    ("algorithm.adv_estimator",), "verl 0.9.1 trainer/ppo/core_algos.py (get_adv_estimator_fn)",
)  # fmt: skip
def estimator_unknown(case: Case) -> Iterator[Found]:
    """A misspelt name passes every check, switches the critic off, and stops the run once the first batch is there."""
    import difflib

    key, value = "algorithm.adv_estimator", case.get("algorithm.adv_estimator")
    # Someone's own estimator can be registered by an external module.
    if isinstance(value, str) and value not in ESTIMATORS and not case.get(f"{MODEL}.external_lib"):
        near = difflib.get_close_matches(value, ESTIMATORS, n=1, cutoff=0.5)
        fixes = (set_key(key, near[0]),) if near else ()
        yield Found(key, "verl knows no such estimator and stops at the first advantage.", fixes)


@rule(
    "kl-twice", "one KL term is enough", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.use_kl_loss", "algorithm.use_kl_in_reward"), "verl 0.9.1 trainer/ppo/utils.py:75-79",
)  # fmt: skip
def kl_twice(case: Case) -> Iterator[Found]:
    """Both terms pull towards the reference model: in the loss and in the reward."""
    key = "algorithm.use_kl_in_reward"
    if case.flag(key) and case.flag("actor_rollout_ref.actor.use_kl_loss"):
        yield Found(key, "the KL penalty is applied twice, in the loss as well.", (set_key(key, False),))


@rule(
    "flash-attn-missing", "flash attention is installed where it is asked for", Severity.ERROR, Stage.WORKERS,
    (ATTENTION,), "verl 0.9.1 workers/config/model.py:185; transformers modeling_utils.py",
)  # fmt: skip
def flash_attn_missing(case: Case) -> Iterator[Found]:
    """verl asks for flash_attention_2 unless told otherwise; without the package the model cannot be built."""
    if case.facts.versions.get("flash-attn") == "" and "flash" in case.attention:
        fixes = (set_key(ATTENTION, "sdpa"),) if case.ulysses("actor") == 1 else ()
        text = "flash-attn is not installed in the interpreter that trains: workers stop when they load the model."
        yield Found(ATTENTION, text, fixes)


@rule(
    "attention-compute-capability", "the GPU runs flash attention", Severity.ERROR, Stage.FIRST_STEP,
    (ATTENTION,), "flash-attention csrc/flash_attn/flash_api.cpp",
)  # fmt: skip
def attention_compute_capability(case: Case) -> Iterator[Found]:
    """flash-attn 2 has no kernels for GPUs before Ampere (compute capability 8.0)."""
    if case.capability is not None and case.capability < (8, 0) and "flash" in case.attention:
        version = ".".join(map(str, case.capability))
        text = f"GPUs of compute capability {version} have no flash attention: the first forward stops."
        yield Found(ATTENTION, text, (set_key(ATTENTION, "sdpa"),))


@rule(
    "critic-flash-attn", "the critic has flash attention", Severity.ERROR, Stage.WORKERS,
    ("critic.model.path",), "verl 0.9.1 utils/model.py:645-651 (load_valuehead_model)",
)  # fmt: skip
def critic_flash_attn(case: Case) -> Iterator[Found]:
    """The critic is always built with flash_attention_2, whatever `override_config` says; the failure is told as
    `is not a value head model, please install trl`."""
    if not case.uses_critic:
        return
    old = case.capability is not None and case.capability < (8, 0)
    if case.facts.versions.get("flash-attn") == "" or old:
        why = "this GPU has no flash attention" if old else "flash-attn is not installed"
        fix = set_key("algorithm.adv_estimator", "grpo", "GRPO, which needs no critic")
        yield Found("critic.model.path", f"{why}, and verl builds the critic with nothing else.", (fix,))


@rule(
    "remote-code", "code of the model's own is allowed where it is needed", Severity.ERROR, Stage.WORKERS,
    (f"{MODEL}.trust_remote_code", "data.trust_remote_code"),
    "transformers dynamic_module_utils.py; verl-project/verl issue 1412",
)  # fmt: skip
def remote_code(case: Case) -> Iterator[Found]:
    """A config with `auto_map` cannot be loaded without consent. The model reads its own key; the data set's is
    another one."""
    key = f"{MODEL}.trust_remote_code"
    architecture = case.facts.architecture
    if architecture is not None and architecture.remote_code and not case.flag(key):
        yield Found(key, "the model's config names code of its own: it cannot be loaded.", (set_key(key, True),))
    elif case.flag("data.trust_remote_code") and not case.flag(key) and architecture is None:
        text = "only the data set's key is true; the model reads this one."
        yield Found(key, text, (set_key(key, True),), Severity.WARNING, Stage.SILENT)


@rule(
    "host-memory", "every rank's copy of a tied model fits the host", Severity.WARNING, Stage.WORKERS,
    (f"{MODEL}.path",), "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:266; verl-project/verl issue 7834",
)  # fmt: skip
def host_memory(case: Case) -> Iterator[Found]:
    """With tied embeddings verl switches meta initialisation off: every rank of a node loads the whole model into
    host memory, in `model_dtype`, before it is sharded."""
    machine, architecture = case.facts.machine, case.facts.architecture
    if machine is None or not machine.host_memory_bytes or architecture is None or not architecture.tied_embeddings:
        return
    ranks = max(1, case.number("trainer.n_gpus_per_node", 1))
    dtype = str(case.engine("actor", "model_dtype", "fp32"))
    needed = ranks * architecture.parameters * LOAD_BYTES.get(dtype, 2)
    share = needed / machine.host_memory_bytes
    if share > HOST_WARNING_SHARE:
        text = (
            f"its embeddings are tied, so {ranks} ranks load {needed / 2**30:.0f} GiB in all into a node's "
            f"{machine.host_memory_bytes / 2**30:.0f} GiB: "
        ) + ("the kernel will kill them." if share > HOST_ERROR_SHARE else "close to the limit.")
        yield Found(f"{MODEL}.path", text, severity=Severity.ERROR if share > HOST_ERROR_SHARE else None)


@rule(
    "liger-missing", "Liger is installed where it is asked for", Severity.ERROR, Stage.WORKERS,
    (f"{MODEL}.use_liger",), "verl 0.9.1 workers/engine/fsdp/transformer_impl.py (_build_module)",
)  # fmt: skip
def liger_missing(case: Case) -> Iterator[Found]:
    """The kernel package is imported when the model is built."""
    key = f"{MODEL}.use_liger"
    if case.flag(key) and case.facts.versions.get("liger-kernel") == "":
        yield Found(key, "liger-kernel is not installed in the interpreter that trains.", (set_key(key, False),))
