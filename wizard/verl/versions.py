"""Names that moved between verl's releases: 0.9's key layout is ours, older ones are translated.

Source: the wheels' `trainer/config/*.yaml` (compare `wizard/verl/schemas/*.json`), and for who reads a key
`workers/fsdp_workers.py` and `workers/engine_workers.py` of each release.
"""

from __future__ import annotations

from typing import Any

from wizard.verl.schema import Schema

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"

_MOVED_IN_0_8 = (("critic.fsdp", "critic.model.fsdp_config"),)
"""0.8 took the critic's FSDP block out of its model."""

_MOVED_IN_0_7 = (
    ("reward.reward_model.model_path", "reward_model.model.path"),
    ("reward.reward_model", "reward_model"),
    ("reward.custom_reward_function", "custom_reward_function"),
    ("reward.sandbox_fusion", "reward_model.sandbox_fusion"),
    ("reward.num_workers", "reward_model.num_workers"),
)
"""0.7.1 gathered everything about rewards under `reward`; 0.6 knows the names on the right only."""


def _moves(minor: tuple[int, int]) -> tuple[tuple[str, str], ...]:
    moves: tuple[tuple[str, str], ...] = ()
    if minor < (0, 8):
        moves += _MOVED_IN_0_8
    if minor < (0, 7):
        moves += _MOVED_IN_0_7
    return moves


def to_version(key: str, minor: tuple[int, int]) -> str:
    """Return the name that `key`, as 0.9 calls it, has in verl `minor`."""
    return _swap(key, _moves(minor))


def from_version(key: str, minor: tuple[int, int]) -> str:
    """Return 0.9's name of a key of verl `minor`."""
    return _swap(key, tuple((old, new) for new, old in _moves(minor)))


def _swap(key: str, moves: tuple[tuple[str, str], ...]) -> str:
    for here, there in moves:
        if key == here or key.startswith(f"{here}."):
            return there + key[len(here) :]
    return key


def translated(values: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Return overrides written in 0.9's names for the release of `schema`, each value where that release reads it.

    A key the release has no place for is dropped: it has nothing that could be set.
    """
    minor = schema.minor
    if minor >= (0, 9):
        return dict(values)
    result: dict[str, Any] = {}
    for key, value in values.items():
        for name in (to_version(key, minor), *_also_read(key, minor)):
            if schema.knows(name):
                result[name] = value
    return result


def _also_read(key: str, minor: tuple[int, int]) -> tuple[str, ...]:
    """Return further keys that must carry the value, since 0.6–0.8 do not forward it as 0.9's YAML does."""
    for owner in (ACTOR, REF):
        for name in ("entropy_from_logits_with_chunking", "entropy_checkpointing"):
            if key == f"{owner}.{name}":
                # 0.9's fsdp_config follows by interpolation; before, the engine's own key has to be set.
                return (f"{owner}.fsdp_config.{name}",)
        if key == f"{owner}.strategy" and minor < (0, 8):
            return (f"{owner}.fsdp_config.strategy",)
    if key == "critic.strategy" and minor < (0, 8):
        return ("critic.model.fsdp_config.strategy",)
    if key == "critic.fsdp.ulysses_sequence_parallel_size" and minor < (0, 8):
        # The legacy critic worker takes it from here (fsdp_workers.py, CriticWorker.__init__).
        return ("critic.ulysses_sequence_parallel_size",)
    if key == "critic.ppo_infer_max_token_len_per_gpu":
        # Before the v1 trainer, training has a budget of its own (trainer/ppo/ray_trainer.py, fsdp_workers.py).
        return ("critic.ppo_max_token_len_per_gpu",)
    return ()
