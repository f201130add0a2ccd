"""The trainer's own settings: generation batches, resuming, filtering, pools beside the main one."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.findings import Severity, Stage
from wizard.rules.case import Case
from wizard.rules.registry import Found, rule, set_key

_BASE = "verl 0.9.1 trainer/ppo/v1/trainer_base.py"
MODE = "trainer.v1.trainer_mode"


@rule(
    "generation-batch", "the train batch is a multiple of the generation batch", Severity.ERROR, Stage.FIRST_STEP,
    ("data.gen_batch_size", "data.train_batch_size"), f"{_BASE}:1478-1489 (_next_train_batch)",
)  # fmt: skip
def generation_batch(case: Case) -> Iterator[Found]:
    """Prompts are fetched in whole generation batches; null means one of the train batch's size."""
    key = "data.gen_batch_size"
    train, each = case.number("data.train_batch_size"), case.number(key)
    if case.is_v1 and case.get(MODE) == "sync" and train and each > 0 and train % each:
        smaller = max(size for size in range(1, each + 1) if train % size == 0)
        yield Found(key, f"{train} prompts do not divide into fetches of {each}.", (set_key(key, smaller),))


@rule(
    "resume-path", "a resumed run names a step's folder", Severity.ERROR, Stage.TRAINER,
    ("trainer.resume_from_path", "trainer.resume_mode"), f"{_BASE}:852-877 (_load_checkpoint)",
)  # fmt: skip
def resume_path(case: Case) -> Iterator[Found]:
    """`resume_path` wants a folder `global_step_N`; a misspelt mode is logged and then fails on an unset variable."""
    key, path = "trainer.resume_mode", case.get("trainer.resume_from_path")
    mode = case.get(key)
    if mode not in (None, "auto", "disable", "resume_path"):
        yield Found(key, "verl knows auto, disable and resume_path.", (set_key(key, "auto"),))
    elif mode == "resume_path" and (not isinstance(path, str) or "global_step_" not in path):
        text = "it must be a folder whose name holds global_step_; verl stops."
        yield Found("trainer.resume_from_path", text, (set_key(key, "auto", "resume from the newest checkpoint"),))


@rule(
    "hybrid-engine", "the hybrid engine stays on", Severity.ERROR, Stage.TRAINER, ("actor_rollout_ref.hybrid_engine",),
    "verl 0.9.1 trainer/ppo/ray_trainer.py:334, trainer/ppo/v1/trainer_separate_async.py",
)  # fmt: skip
def hybrid_engine(case: Case) -> Iterator[Found]:
    """The older trainer asserts it. The v1 trainer reads it in separate_async mode only, and ignores it elsewhere."""
    key = "actor_rollout_ref.hybrid_engine"
    if case.get(key) is not False or case.get(MODE) == "separate_async":
        return
    fixes = (set_key(key, True),)
    if case.is_v1:
        text = f"only trainer_mode separate_async reads it; {case.get(MODE)} colocates the rollout all the same."
        yield Found(key, text, fixes, Severity.WARNING, Stage.SILENT)
    else:
        yield Found(key, "the trainer asserts that it is true.", fixes)


@rule(
    "filter-groups", "filtered groups have a metric at sampling time", Severity.ERROR, Stage.TRAINER,
    ("algorithm.filter_groups.metric",), f"{_BASE}:187-204 (_resolve_filter_groups_metric)",
)  # fmt: skip
def filter_groups(case: Case) -> Iterator[Found]:
    """DAPO's filter looks at a reward metric while samples arrive, which a colocated reward model gives only later."""
    own_sampler = case.get("trainer.v1.sampler.custom_sampler.path")
    if not case.is_v1 or not case.flag("algorithm.filter_groups.enable") or own_sampler:
        return
    key, pool = "algorithm.filter_groups.metric", "reward.reward_model.enable_resource_pool"
    if not case.get(key):
        yield Found(key, "group filtering needs the metric it filters by.", (set_key(key, "reward"),))
    if case.flag("reward.reward_model.enable") and not case.flag(pool):
        text = "group filtering needs rewards while samples arrive, which a colocated reward model does not give."
        yield Found(pool, text, (set_key("algorithm.filter_groups.enable", False),))


@rule(
    "off-policy", "off-policy limits are ones the replay buffer takes", Severity.ERROR, Stage.TRAINER,
    ("trainer.v1.sampler.max_off_policy_threshold", "trainer.v1.sampler.max_off_policy_strategy"),
    "verl 0.9.1 trainer/ppo/v1/replay_buffer.py:165-177",
)  # fmt: skip
def off_policy(case: Case) -> Iterator[Found]:
    """A threshold is null or a whole number above 0; stale samples are dropped or waited for."""
    if not case.is_v1:
        return
    key = "trainer.v1.sampler.max_off_policy_threshold"
    value = case.get(key)
    if value is not None and not (isinstance(value, int) and value > 0):
        yield Found(key, "it is null or a whole number above 0.", (set_key(key, None),))
    key = "trainer.v1.sampler.max_off_policy_strategy"
    if key in case.config and case.get(key) not in ("drop", "wait"):
        yield Found(key, "verl knows drop and wait.", (set_key(key, "drop"),))


@rule(
    "teacher-pool", "a teacher has GPUs", Severity.ERROR, Stage.TRAINER,
    ("distillation.n_gpus_per_node", "distillation.nnodes"), f"{_BASE}:838-846",
)  # fmt: skip
def teacher_pool(case: Case) -> Iterator[Found]:
    """On-policy distillation runs its teacher on a pool of its own."""
    if not case.is_v1 or not case.flag("distillation.enabled"):
        return
    for name in ("nnodes", "n_gpus_per_node"):
        key = f"distillation.{name}"
        if case.number(key) < 1:
            yield Found(key, "the teacher's pool has no GPUs.", (set_key(key, 1),))


@rule(
    "model-path-default", "the models are named", Severity.ERROR, Stage.DRIVER,
    ("actor_rollout_ref.model.path", "critic.model.path"),
    "verl 0.9.1 utils/config.py (HFModelConfig of the critic), workers/engine_workers.py:545",
)  # fmt: skip
def model_path_default(case: Case) -> Iterator[Found]:
    """verl's default is the folder `~/models/deepseek-llm-7b-chat` of its authors, also for the critic, which does not
    follow the actor's. The critic's is loaded in verl's first check, the actor's when workers start."""
    actor, critic = "actor_rollout_ref.model.path", "critic.model.path"
    if not case.config.is_given(actor):
        yield Found(actor, "it is not given, and verl's default is a folder of its authors.", stage=Stage.WORKERS)
    if case.uses_critic and not case.config.is_given(critic):
        fixes = (set_key(critic, case.get(actor)),) if case.config.is_given(actor) else ()
        yield Found(critic, "it does not follow the actor's, and verl's default is a folder of its authors.", fixes)
