"""A configuration with the facts around it, and the numbers that verl derives from both.

Names follow verl: W world size of the training engine, n responses a prompt, DP data-parallel size of a role.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from wizard.facts import Architecture, Machine
from wizard.plan import Role
from wizard.verl.config import VerlConfig
from wizard.verl.keys import ACTOR, ENGINES, MODEL, REF, ROLLOUT

Engine = Literal["actor", "ref", "critic"]
OWNERS: Mapping[Engine, str] = {"actor": ACTOR, "ref": REF, "critic": "critic"}


@dataclass(frozen=True)
class Facts:
    """What is known beside the configuration; a rule whose facts are unknown says nothing."""

    machine: Machine | None = None
    architecture: Architecture | None = None
    critic_architecture: Architecture | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """Packages of the target interpreter with their versions; an empty text for one that is missing. Packages that
    were not looked for are absent."""
    visible_devices: str | None = None
    """`CUDA_VISIBLE_DEVICES` where the run will start; None when it is not set or not known."""
    ranks: Mapping[Role, int] = field(default_factory=dict)
    """GPUs of roles that a launcher gives a pool of their own: no key of the configuration says so."""


class Case:
    """What rules look at."""

    def __init__(self, config: VerlConfig, facts: Facts) -> None:
        self.config = config
        self.facts = facts

    def get(self, key: str, default: Any = None) -> Any:
        """Return a resolved value of the configuration."""
        return self.config.get(key, default)

    def number(self, key: str, default: int = 0) -> int:
        """Return a whole number, `default` for anything else."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def flag(self, key: str) -> bool:
        """Return whether a key is true."""
        return self.get(key) is True

    @functools.cached_property
    def world_size(self) -> int:
        """W of the actor, and of every role that shares its GPUs: `trainer.nnodes` × `trainer.n_gpus_per_node`."""
        return max(1, self.number("trainer.nnodes", 1)) * max(1, self.number("trainer.n_gpus_per_node", 1))

    def ranks(self, role: Engine) -> int:
        """Return W of a role: its own pool's GPUs, else the actor's."""
        return self.facts.ranks.get(role, self.world_size)

    @functools.cached_property
    def rollout_has_pool(self) -> bool:
        """Whether the rollout engine has GPUs of its own."""
        return self.is_v1 and self.get("trainer.v1.trainer_mode") == "separate_async"

    @functools.cached_property
    def rollout_ranks(self) -> int:
        """GPUs of the rollout engine; 0 for a pool of its own without any."""
        if not self.rollout_has_pool:
            return self.world_size
        return self.number(f"{ROLLOUT}.nnodes") * self.number(f"{ROLLOUT}.n_gpus_per_node")

    @functools.cached_property
    def responses(self) -> int:
        """n: responses a prompt gets."""
        return max(1, self.number(f"{ROLLOUT}.n", 1))

    @functools.cached_property
    def dynamic(self) -> bool:
        """Whether the actor packs micro-batches dynamically."""
        return self.flag(f"{ACTOR}.use_dynamic_bsz")

    @functools.cached_property
    def uses_ref(self) -> bool:
        """verl 0.9.1 `trainer/ppo/utils.py`, `need_reference_policy`."""
        return self.flag("algorithm.use_kl_in_reward") or self.flag(f"{ACTOR}.use_kl_loss")

    @functools.cached_property
    def uses_critic(self) -> bool:
        """verl 0.9.1 `trainer/ppo/utils.py`, `need_critic`."""
        given = self.get("critic.enable")
        return bool(given) if given is not None else self.get("algorithm.adv_estimator") == "gae"

    @functools.cached_property
    def engines(self) -> tuple[Engine, ...]:
        """Roles that have an FSDP engine."""
        roles: list[Engine] = ["actor"]
        if self.uses_ref and not self.ref_in_actor:
            roles.append("ref")
        if self.uses_critic:
            roles.append("critic")
        return tuple(roles)

    @functools.cached_property
    def trained(self) -> tuple[Engine, ...]:
        """Roles with an optimizer."""
        return tuple(role for role in self.engines if role != "ref")

    def engine_key(self, role: Engine, name: str) -> str:
        """Return the key of a role's FSDP setting."""
        minor = self.config.schema.minor
        if role == "critic" and minor < (0, 8):
            return f"critic.model.fsdp_config.{name}"
        return f"{ENGINES[role]}.{name}"

    def engine(self, role: Engine, name: str, default: Any = None) -> Any:
        """Return a role's FSDP setting."""
        return self.get(self.engine_key(role, name), default)

    def strategy_key(self, role: Engine) -> str:
        """Return the key that decides a role's strategy."""
        return f"{OWNERS[role]}.strategy"

    def strategy(self, role: Engine) -> Any:
        """Return a role's strategy: the owner's key overwrites the engine's (verl 0.9.1 `workers/config/actor.py`)."""
        return self.get(self.strategy_key(role))

    def ulysses(self, role: Engine) -> int:
        """Return the sequence parallel size that a role runs with (verl 0.9.1 `workers/config/actor.py`).

        The owner's deprecated key wins where it is above 1; the critic's is never read.
        """
        engine = self.number(self.engine_key(role, "ulysses_sequence_parallel_size"), 1)
        owner = 1 if role == "critic" else self.number(f"{OWNERS[role]}.ulysses_sequence_parallel_size", 1)
        return owner if owner > 1 else max(1, engine)

    def ulysses_key(self, role: Engine) -> str:
        """Return the key that decides it."""
        if role != "critic" and self.number(f"{OWNERS[role]}.ulysses_sequence_parallel_size", 1) > 1:
            return f"{OWNERS[role]}.ulysses_sequence_parallel_size"
        return self.engine_key(role, "ulysses_sequence_parallel_size")

    def data_parallel(self, role: Engine) -> int:
        """Return DP: W // Ulysses size; `fsdp_size` does not enter it."""
        return max(1, self.ranks(role) // self.ulysses(role))

    def removes_padding(self, role: Engine) -> bool:
        """Whether a role packs sequences without padding."""
        return self.flag("critic.model.use_remove_padding" if role == "critic" else f"{MODEL}.use_remove_padding")

    def architecture(self, role: Engine) -> Architecture | None:
        """Return the model a role runs, if it was inspected."""
        if role != "critic":
            return self.facts.architecture
        if self.facts.critic_architecture is not None:
            return self.facts.critic_architecture
        same = self.get("critic.model.path") == self.get(f"{MODEL}.path")
        return self.facts.architecture if same else None

    @functools.cached_property
    def longest(self) -> int:
        """Tokens of the longest prompt with the longest response."""
        return self.number("data.max_prompt_length") + self.number("data.max_response_length")

    @functools.cached_property
    def attention(self) -> str:
        """Attention implementation of actor and ref (verl 0.9.1 `workers/config/model.py`)."""
        return str(self.get(f"{MODEL}.override_config.attn_implementation") or "flash_attention_2")

    @functools.cached_property
    def lora_rank(self) -> int:
        """LoRA rank the FSDP engine trains with, 0 without (verl 0.9.1 `fsdp/transformer_impl.py:162`)."""
        return max(0, self.number(f"{MODEL}.lora_rank"))

    @functools.cached_property
    def rollout_lora_rank(self) -> int:
        """LoRA rank that trainer and rollout believe in (verl 0.9.1 `trainer/ppo/v1/trainer_base.py:234`)."""
        rank = self.number(f"{MODEL}.lora.rank")
        return rank if rank > 0 else self.lora_rank

    @functools.cached_property
    def ref_in_actor(self) -> bool:
        """Whether the reference is the actor with its adapter off (verl 0.9.1 `trainer_base.py:237`)."""
        return self.rollout_lora_rank > 0 or self.get(f"{MODEL}.lora_adapter_path") is not None

    @functools.cached_property
    def gpus_are_known(self) -> bool:
        """Whether anything but verl's default of 8 says how many GPUs there are."""
        machine = self.facts.machine
        return self.config.is_given("trainer.n_gpus_per_node") or bool(machine and machine.gpus_per_node)

    @functools.cached_property
    def padded_batch(self) -> int:
        """Samples of a step after verl 0.9 padded it (`trainer/ppo/v1/trainer_base.py`, `_pad_batch`)."""
        mini = self.number(f"{ACTOR}.ppo_mini_batch_size", 1) * self.responses
        unit = math.lcm(self.data_parallel("actor"), max(1, mini))
        if self.uses_critic:
            unit = math.lcm(unit, max(1, self.number("critic.ppo_mini_batch_size", 1) * self.responses))
        samples = self.number("data.train_batch_size", 1) * self.responses
        return -(-samples // unit) * unit

    @functools.cached_property
    def is_v1(self) -> bool:
        """Whether verl's v1 trainer runs, which pads batches."""
        return self.config.schema.minor >= (0, 9) and self.get("trainer.use_v1") is not False

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability of the GPUs, None when unknown."""
        text = self.facts.machine.compute_capability if self.facts.machine else ""
        major, _, minor = text.partition(".")
        return (int(major), int(minor or 0)) if major.isdigit() and (minor or "0").isdigit() else None
