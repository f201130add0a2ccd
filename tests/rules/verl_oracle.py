"""Asks verl itself: reads `{key: value}` a line on stdin, answers with the stage at which verl refuses it and why.

Runs in a process of its own, since verl patches transformers. Everything that decides is verl's code: the composed
defaults, `validate_config`, `ActorRolloutRefWorker.init_model` with its engines replaced by the checks their
constructors make (`FSDPEngine._init_device_mesh`, `get_init_weight_context_manager`, `apply_monkey_patch`,
`get_fsdp_wrap_policy`, `apply_fsdp2`'s selection, `PrecisionType`), on the last rank of a fake process group.
"""

# ruff: noqa: E402, I001

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import json
import os
import sys
import types
from typing import Any

os.environ["VERL_ENGINE_DEVICE"] = "cuda"


def stand_in(name: str) -> None:
    """Let verl import a server package that plain `pip install verl` does not bring and that no check calls."""
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = StandIn(name)


class StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for package in ("uvicorn", "fastapi"):
    stand_in(package)

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

import verl
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import fsdp_utils
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.torch_dtypes import PrecisionType
from verl.workers import engine_workers
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp import utils as fsdp_mesh
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, get_rollout_class

transformer_impl.device_name = "cpu"
fsdp_mesh.get_device_name = lambda: "cpu"
engine_workers.get_device_name = lambda: "cpu"


class Refused(Exception):
    """verl stopped at `stage`."""

    def __init__(self, stage: str, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.stage = stage


@contextlib.contextmanager
def stage(name: str) -> Any:
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        raise Refused(name, error) from error


class Engine:
    """What `TrainingWorker` and `FSDPEngine` check before they need a GPU."""

    def __init__(self, config: Any) -> None:
        engine, model = config.engine_config, config.model_config
        EngineRegistry.get_engine_cls(model_type="language_model", backend=engine.strategy)
        mesh = transformer_impl.FSDPEngineWithLMHead(model, engine, config.optimizer_config, config.checkpoint_config)
        fsdp_utils.get_init_weight_context_manager(
            use_meta_tensor=not model.hf_config.tie_word_embeddings, mesh=mesh.device_mesh
        )
        if mesh.ulysses_device_mesh is not None:
            mesh.ulysses_device_mesh.get_coordinate()[-1]
        PrecisionType.to_dtype(engine.model_dtype or "fp32")
        module = meta_model(model.local_path)
        apply_monkey_patch(
            model=module, use_remove_padding=model.use_remove_padding,
            ulysses_sp_size=engine.ulysses_sequence_parallel_size,
        )  # fmt: skip
        for name in ("param_dtype", "reduce_dtype", "buffer_dtype"):
            if engine.mixed_precision and name in engine.mixed_precision:
                PrecisionType.to_dtype(engine.mixed_precision[name])
        fsdp_utils.get_fsdp_wrap_policy(module=module, config=engine.wrap_policy, is_lora=model.lora_rank > 0)
        if engine.strategy == "fsdp2":
            sharded: list[Any] = []
            with replaced(fsdp_utils, "fully_shard", lambda module, **kwargs: sharded.append(module)):
                fsdp_utils.apply_fsdp2(module, {}, engine)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: {}


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Any:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


@functools.cache
def meta_model(path: str) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))


def ask(base: Any, values: dict[str, Any]) -> None:
    config = copy.deepcopy(base)
    OmegaConf.set_struct(config, False)
    with open_dict(config):
        for key, value in values.items():
            OmegaConf.update(config, key, value, force_add=True)
    with stage("driver"):
        validate_config(config, need_reference_policy(config), need_critic(config))
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=world - 1, world_size=world)
    try:
        with stage("workers"):
            workers(config, world)
    finally:
        torch.distributed.destroy_process_group()


def workers(config: Any, world: int) -> None:
    if need_critic(config):
        critic = omega_conf_to_dataclass(config.critic)
        Engine(
            types.SimpleNamespace(
                engine_config=critic.engine, model_config=critic.model, optimizer_config=None, checkpoint_config=None
            )
        )
    role = "actor_rollout_ref" if need_reference_policy(config) else "actor_rollout"
    worker = types.SimpleNamespace(
        config=config.actor_rollout_ref, role=role, actor_worker_cls=Engine, ref_worker_cls=Engine,
        distillation_enabled=False, _omega_profiler_config=None, set_dispatch_collect=lambda *a, **k: None,
        world_size=world,
    )  # fmt: skip
    rollout = config.actor_rollout_ref.rollout
    with (
        replaced(engine_workers, "get_rollout_class", lambda name, mode: Stop()),
        replaced(engine_workers, "init_device_mesh", lambda *args, **kwargs: init_device_mesh("cpu", (world,))),
        contextlib.suppress(Reached),
    ):
        engine_workers.ActorRolloutRefWorker.init_model(worker)
    if (rollout.name, rollout.mode) not in _ROLLOUT_REGISTRY:
        get_rollout_class(rollout.name, rollout.mode)


class Reached(Exception):
    """All that verl checks before it needs the inference engine has passed."""


class Stop:
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise Reached


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
    with initialize_config_dir(folder, version_base=None):
        base = compose("ppo_trainer")
        print(json.dumps({"ready": verl.__version__}), file=answers, flush=True)
        for line in sys.stdin:
            question = json.loads(line)
            answer: dict[str, str] = {}
            try:
                if "overrides" in question:
                    with stage("composition"):
                        compose("ppo_trainer", overrides=question["overrides"])
                else:
                    ask(base, question["values"])
            except Refused as refusal:
                answer = {"stage": refusal.stage, "error": str(refusal)}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
