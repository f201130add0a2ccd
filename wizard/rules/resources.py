"""Trainer modes and their pools; loggers and data."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.findings import Change, Fix, Severity, Stage
from wizard.rules.case import Case
from wizard.rules.registry import Found, rule, set_key
from wizard.verl.keys import ACTOR, ROLLOUT
from wizard.verl.versions import to_version

MODES = ("sync", "colocate_async", "separate_async")


@rule(
    "trainer-mode", "the trainer mode is one of verl's", Severity.ERROR, Stage.TRAINER, ("trainer.v1.trainer_mode",),
    "verl 0.9.1 trainer/ppo/v1/trainer_base.py:2017-2023",
)  # fmt: skip
def trainer_mode(case: Case) -> Iterator[Found]:
    """Names are looked up in a registry when the trainer starts."""
    key = "trainer.v1.trainer_mode"
    if case.is_v1 and key in case.config and case.get(key) not in MODES:
        yield Found(key, f"verl knows {', '.join(MODES)}.", (set_key(key, "sync"),))


@rule(
    "separate-rollout", "a separate rollout pool is complete", Severity.ERROR, Stage.TRAINER,
    ("trainer.v1.trainer_mode",), "verl 0.9.1 trainer/ppo/v1/trainer_separate_async.py:56-76",
)  # fmt: skip
def separate_rollout(case: Case) -> Iterator[Found]:
    """The separate trainer wants GPUs for the rollout, a checkpoint engine that crosses processes, and a step of
    exactly `parameter_sync_step` mini-batches."""
    if not case.rollout_has_pool:
        return
    for name in ("nnodes", "n_gpus_per_node"):
        key = f"{ROLLOUT}.{name}"
        if case.number(key) < 1:
            yield Found(key, "the rollout has no GPUs of its own.", (set_key(key, 1),))
    backend = f"{ROLLOUT}.checkpoint_engine.backend"
    if case.get(backend) == "naive":
        yield Found(backend, "weights cannot cross processes with it.", (set_key(backend, "nccl"),))
    train, mini = case.number("data.train_batch_size"), case.number(f"{ACTOR}.ppo_mini_batch_size", 1)
    key = "trainer.v1.separate_async.parameter_sync_step"
    steps = case.number(key, 4)
    if train != steps * mini:
        fixes = [set_key("data.train_batch_size", steps * mini)]
        if mini and train % mini == 0 and train >= mini:
            fixes.insert(0, set_key(key, train // mini))
        yield Found("data.train_batch_size", f"a step must be {steps} mini-batches of {mini} prompts.", tuple(fixes))
    key = "reward.reward_model.enable_resource_pool"
    if case.flag("reward.reward_model.enable") and not case.flag(key):
        text = "a rollout of its own never pauses to lend its memory: the reward model needs GPUs of its own too."
        yield Found(key, text, (set_key(key, True),))


@rule(
    "reward-pool", "a reward pool has GPUs", Severity.ERROR, Stage.TRAINER,
    ("reward.reward_model.enable_resource_pool",), "verl 0.9.1 trainer/ppo/v1/trainer_base.py:823-831",
)  # fmt: skip
def reward_pool(case: Case) -> Iterator[Found]:
    """`nnodes` is 0 by default."""
    block = to_version("reward.reward_model", case.config.schema.minor)
    if case.flag(f"{block}.enable") and case.flag(f"{block}.enable_resource_pool"):
        for name, value in (("nnodes", 1), ("n_gpus_per_node", 8)):
            if case.number(f"{block}.{name}") < 1:
                yield Found(f"{block}.{name}", "the reward pool has no GPUs.", (set_key(f"{block}.{name}", value),))


@rule(
    "logger-wandb", "wandb needs a login", Severity.NOTE, Stage.TRAINER, ("trainer.logger",),
    "verl 0.9.1 trainer/config/ppo_trainer.yaml; wandb sdk/wandb_login.py",
)  # fmt: skip
def logger_wandb(case: Case) -> Iterator[Found]:
    """verl's default is console and wandb; without a key on the node the run stops when it starts to log."""
    key = "trainer.logger"
    given = case.get(key)
    if isinstance(given, list) and "wandb" in given and not case.config.is_given(key):
        yield Found(key, "verl's default logs to wandb, which needs a login on the node.", (set_key(key, ["console"]),))


@rule(
    "overlong-prompts", "longer prompts are filtered", Severity.WARNING, Stage.FIRST_STEP,
    ("data.filter_overlong_prompts",), "verl 0.9.1 utils/dataset/rl_dataset.py; trainer/config/data/legacy_data.yaml",
)  # fmt: skip
def overlong_prompts(case: Case) -> Iterator[Found]:
    """verl's default neither filters nor truncates: the run stops at the first prompt that is too long."""
    key = "data.filter_overlong_prompts"
    if case.get(key) is False and case.get("data.truncation") == "error":
        yield Found(key, "the first prompt above max_prompt_length stops the run.", (set_key(key, True),))


@rule(
    "legacy-reward", "reward keys stand under reward", Severity.ERROR, Stage.SILENT,
    ("reward_model.enable", "custom_reward_function.path"),
    "verl 0.9.1 trainer/config/legacy_reward_impl.yaml, trainer/ppo/reward.py:70",
)  # fmt: skip
def legacy_reward(case: Case) -> Iterator[Found]:
    """0.9 keeps the old keys in its YAML but no longer moves them: a reward model or reward function given there is
    never used, without a word."""
    if case.config.schema.minor < (0, 9):
        return
    moves = {
        "reward_model.enable": "reward.reward_model.enable",
        "custom_reward_function.path": "reward.custom_reward_function.path",
    }
    for old, new in moves.items():
        value = case.get(old)
        if case.config.is_given(old) and value and not case.get(new):
            changes = [Change(new, value)]
            name = "custom_reward_function.name"
            if old.startswith("custom") and case.config.is_given(name):
                changes.append(Change(f"reward.{name}", case.get(name)))
            yield Found(old, f"this verl no longer reads it: the reward is computed without it. It is {new} now.",
                        (Fix(f"use {new}", tuple(changes)),))  # fmt: skip


@rule(
    "save-host-memory", "host memory is known when states are offloaded", Severity.NOTE, Stage.FIRST_STEP,
    ("trainer.save_freq",), "verl-project/verl issue 1964",
)  # fmt: skip
def save_host_memory(case: Case) -> Iterator[Found]:
    """Offloaded states wait in host memory, and a checkpoint gathers more of it there: see the estimate's figure."""
    machine, architecture = case.facts.machine, case.facts.architecture
    offloaded = any(
        case.flag(case.engine_key("actor", name)) for name in ("param_offload", "optimizer_offload", "offload_policy")
    )
    if machine is None or not machine.host_memory_bytes or architecture is None or not offloaded:
        return
    ranks = max(1, case.number("trainer.n_gpus_per_node", 1))
    needed = 16 * architecture.parameters * ranks / case.world_size
    if needed > 0.7 * machine.host_memory_bytes:
        there = machine.host_memory_bytes / 2**30
        text = f"offloaded states take up to {needed / 2**30:.0f} GiB of a node's {there:.0f} GiB."
        yield Found("trainer.save_freq", text)
