"""The same steps on verl's own FSDP engine, from the configuration that training will read. Target interpreter.

Tested against verl 0.9.1: `workers/engine/fsdp/transformer_impl.py` (`FSDPEngine`), `workers/engine_workers.py`
(`ActorRolloutRefWorker.init_model`, `TrainingWorker.train_batch`), `workers/utils/losses.py` (`sft_loss`).
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from wizard.validation import passes
from wizard.validation.finite import FirstNonFinite
from wizard.validation.load import random_model
from wizard.validation.measure import tell_memory, time_steps
from wizard.validation.parity import prove_parity, reference_loss
from wizard.validation.passes import Batch, NonFiniteError
from wizard.validation.setup import Context
from wizard.validation.verl_on_cpu import use_cpu
from wizard.validation.wrap import fsdp1_units, fsdp2_units, prove_wrapped

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"


class VerlEngine:
    """verl's FSDP engine of the actor, built in the steps `load` and `wrap`."""

    def __init__(self, context: Context, folder: str) -> None:
        """Compose the configuration and build the engine, without a model yet.

        Raises:
            Exception: whatever verl, Hydra or transformers say of the configuration.
        """
        if context.device.type == "cpu":
            use_cpu()
        self.context = context
        self.config = _composed(context, folder)
        self.engine, self.model_config = _engine(self.config)
        self._watch: FirstNonFinite | None = None
        self._batch_tokens = 0

    def load(self) -> Any:
        """Return the model as verl loads it, before it is sharded."""
        import verl

        module = self.engine._build_module()
        self.context.reporter.metric(
            engine=f"{type(self.engine).__name__} of verl {verl.__version__}",
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            on_meta_device=any(parameter.is_meta for parameter in module.parameters()),
            tied_embeddings=bool(self.model_config.hf_config.tie_word_embeddings),
            model_class=type(module).__name__,
        )
        # `initialize` goes on from the module that is here.
        self.engine._build_module = lambda: module
        return module

    def wrap(self) -> None:
        """Let verl shard the model and make its optimizer, and prove what came of it."""
        self.engine.initialize()
        trained = sum(p.numel() for p in self.engine.module.parameters() if p.requires_grad)
        self.context.reporter.metric(local_trainable_parameters=trained)
        module = self.engine.module
        units = fsdp1_units(module) if self.context.spec.strategy == "fsdp" else fsdp2_units(module)
        prove_wrapped(module, units, self.context, self.context.spec.wrap_classes)

    def forward(self, batches: list[Batch]) -> float:
        """Compute log-probabilities as verl does, and return the loss averaged over all ranks.

        Raises:
            NonFiniteError: with the name of the first module whose result is not finite.
        """
        with FirstNonFinite(self.engine.module) as self._watch, self.engine.eval_mode():
            output = self.engine.infer_batch(self._data(batches), self._loss)
        loss = torch.tensor(sum(output["loss"]), device=self.context.device)
        value = passes.reported_loss(loss)
        self.context.reporter.metric(loss=value, tokens=batches[0].whole_tokens)
        return value

    def backward(self, batches: list[Batch]) -> None:
        """Run verl's forward and backward of all micro-batches, and prove the gradients; call it in `train_mode`."""
        self.engine.optimizer_zero_grad()
        self._watch = self.context.watch = FirstNonFinite(self.engine.module)
        with self._watch:
            self.engine.forward_backward_batch(self._data(batches), self._loss)
        passes.prove_gradients(self.engine.module, self.context)

    def optimizer_step(self) -> None:
        """Let verl clip and step.

        Raises:
            NonFiniteError: the gradient norm is not finite; verl would leave the step out with a warning.
        """
        norm = float(self.engine.optimizer_step())
        self.engine.lr_scheduler_step()
        if not norm < float("inf"):
            raise NonFiniteError(f"grad_norm is not finite: {norm}")
        self.engine.optimizer_zero_grad()
        self.context.reporter.metric(gradient_norm=norm)

    def benchmark(self, batch: Batch) -> None:
        """Time verl's forward, forward + backward, and whole training step."""
        batches = [batch] * self.context.spec.micro_batches

        def forward() -> None:
            self.engine.infer_batch(self._data([batch]), self._loss)

        def forward_backward() -> None:
            self.engine.forward_backward_batch(self._data([batch]), self._loss)
            self.engine.optimizer_zero_grad()

        def step() -> None:
            self.engine.train_batch(self._data(batches), self._loss)

        with self.engine.train_mode():
            time_steps(forward, forward_backward, step, batch.whole_tokens, self.context)

    def offload(self) -> None:
        """Move to the host and back what the configuration offloads, by verl's own functions."""
        engine, device = self.engine, self.context.device
        moved = {
            "model": engine.is_param_offload_enabled,
            "optimizer": engine.is_optimizer_offload_enabled,
            "grad": engine.is_param_offload_enabled,
        }
        seconds = []
        for place in (device.type, "cpu"):
            started = time.perf_counter()
            engine.to(place, **moved)
            seconds.append(time.perf_counter() - started)
        self.context.reporter.metric(reload_seconds=seconds[0], offload_seconds=seconds[1])

    def _data(self, batches: list[Batch]) -> Any:
        """Return micro-batches as verl's trainer hands them over: nested tensors, one row a sequence."""
        from verl.utils import tensordict_utils as tu

        ids, positions, masks, per_batch = [], [], [], 0
        for batch in batches:
            starts = (batch.position_ids[0] == 0).nonzero().flatten().tolist()
            ends = [*starts[1:], batch.input_ids.shape[1]]
            per_batch = len(starts)
            for start, end in zip(starts, ends, strict=True):
                ids.append(batch.input_ids[0, start:end])
                positions.append(batch.position_ids[0, start:end])
                mask = torch.ones_like(ids[-1])
                # No token before it tells the first one.
                mask[0] = 0
                masks.append(mask)
        self._batch_tokens = sum(batch.whole_tokens for batch in batches)
        engine = self.engine.engine_config
        share = self.context.spec.ulysses_size
        return tu.get_tensordict(
            {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in
             (("input_ids", ids), ("position_ids", positions), ("loss_mask", masks))},
            {
                "use_remove_padding": self.model_config.use_remove_padding,
                "use_dynamic_bsz": engine.use_dynamic_bsz,
                "max_token_len_per_gpu": -(-batches[0].whole_tokens // share),
                "micro_batch_size_per_gpu": per_batch,
                "use_fused_kernels": self.model_config.use_fused_kernels,
                "temperature": 1.0,
                "calculate_entropy": self._entropy,
            },
        )  # fmt: skip

    @property
    def _entropy(self) -> bool:
        """verl 0.9.1 `trainer/ppo/v1/trainer_base.py`, `_update_actor`."""
        actor = self.config.actor_rollout_ref.actor
        return bool(actor.calculate_entropy or actor.entropy_coeff != 0.0)

    def _loss(self, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        """verl's next-token loss, as a mean over all tokens like the other engine's."""
        from verl.workers.utils.losses import sft_loss

        if self._watch is not None:
            # The forward ends here: what backward recomputes is not watched.
            self._watch.__exit__(None, None, None)
            watch, self._watch = self._watch, None
            if not bool(torch.isfinite(model_output["log_probs"].values()).all()):
                raise NonFiniteError(watch.sentence() or "log-probabilities hold NaN or infinity")
        loss, metrics = sft_loss(None, model_output, data, dp_group)
        whole = self._batch_tokens * data["dp_size"]
        return loss * data["batch_num_tokens"] / whole, metrics


def run_steps(context: Context) -> None:
    """Run all steps after `environment`."""
    spec, reporter = context.spec, context.reporter
    with reporter.running("load"):
        made = _made_folder(context)
        actor = VerlEngine(context, str(made or spec.model))
        model = actor.load()
        context.parameters = sum(parameter.numel() for parameter in model.parameters())
        vocab_size = int(model.config.get_text_config().vocab_size)
        reference = reference_loss(model, context, vocab_size) if "parity" in spec.steps else None
        tell_memory(context, "load")
    with reporter.running("wrap"):
        actor.wrap()
        if made is not None and context.rank == 0:
            # Every rank has read it: sharding was collective.
            shutil.rmtree(made, ignore_errors=True)
        del model
        tell_memory(context, "wrap")
    batches = [passes.make_batch(context, vocab_size, number, whole=True) for number in passes.batch_numbers(context)]
    with reporter.running("forward"):
        sharded = actor.forward(batches)
        tell_memory(context, "forward")
    with actor.engine.train_mode():
        with reporter.running("backward"):
            actor.backward(batches)
            tell_memory(context, "backward")
        with reporter.running("optimizer"):
            actor.optimizer_step()
            tell_memory(context, "optimizer")
    if "benchmark" in spec.steps:
        with reporter.running("benchmark"):
            actor.benchmark(batches[0])
            tell_memory(context, "actor_update")
    if "offload" in spec.steps:
        with reporter.running("offload"):
            actor.offload()
            tell_memory(context, "offload")
    if "parity" in spec.steps:
        with reporter.running("parity"):
            prove_parity(reference, sharded, context)


def _composed(context: Context, folder: str) -> Any:
    """Return what `run.yaml` composes to in this verl, with the differences of this run."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer")
    OmegaConf.set_struct(config, False)
    for key, value in context.spec.verl_overrides.items():
        OmegaConf.update(config, key, value, force_add=True)
    OmegaConf.update(config, f"{MODEL}.path", folder, force_add=True)
    if not context.spec.model:
        OmegaConf.update(config, f"{MODEL}.load_tokenizer", False, force_add=True)
    optimizer = config.actor_rollout_ref.actor.optim
    if optimizer.total_training_steps <= 0:
        # The trainer sets it from the length of the data.
        optimizer.total_training_steps = 1000
    return config


def _engine(config: Any) -> tuple[Any, Any]:
    """verl 0.9.1 `workers/engine_workers.py`, `init_model` and `TrainingWorker.__init__`."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine import EngineRegistry

    block = config.actor_rollout_ref
    model_config = omega_conf_to_dataclass(block.model)
    actor = omega_conf_to_dataclass(block.actor)
    engine_config = actor.engine
    engine_config.use_dynamic_bsz = block.actor.use_dynamic_bsz
    engine_config.use_remove_padding = model_config.use_remove_padding
    engine = EngineRegistry.new(
        model_type="language_model",
        backend=engine_config.strategy,
        model_config=model_config,
        engine_config=engine_config,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    return engine, model_config


def _made_folder(context: Context) -> Path | None:
    """Return a folder with random weights, made by rank 0 since verl loads from a path only; None for real ones."""
    spec = context.spec
    if spec.model and not spec.random_weights:
        return None
    place = [""]
    if context.rank == 0:
        place = [tempfile.mkdtemp(prefix="verl-wizard-")]
        if spec.model:
            heavy = shutil.ignore_patterns("*.safetensors", "*.bin", "*.index.json")
            shutil.copytree(spec.model, place[0], ignore=heavy, dirs_exist_ok=True)
        random_model(context).save_pretrained(place[0])
    dist.broadcast_object_list(place)
    return Path(place[0])
