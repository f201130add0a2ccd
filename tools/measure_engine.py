"""One measured configuration: build as verl does, run three steps, read the allocator."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import transformers
from measure_cases import Case
from measure_model import config_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TRACED = 25
"""Groups of live allocations kept at each stage's peak."""


def machine(module: Any, on_cpu: bool) -> dict[str, Any]:
    """Return what the numbers were measured on."""
    found = {"torch": module.__version__, "transformers": transformers.__version__, "device": "cpu"}
    if not on_cpu:
        properties = module.cuda.get_device_properties(0)
        module.zeros(1, device="cuda")
        free, total = module.cuda.mem_get_info()
        context = total - free - module.cuda.memory_reserved()
        found |= {"device": properties.name, "memory_bytes": total, "context_bytes": context}
    return found


class Measurement:
    """Builds, runs and reads one case."""

    def __init__(self, case: Case, on_cpu: bool) -> None:
        self.case, self.on_cpu = case, on_cpu
        self.device = "cpu" if on_cpu else "cuda"
        self.peaks: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.held: dict[str, list[Any]] = {}
        self.offset = 0

    def run(self) -> dict[str, Any]:
        """Return the row: peaks by stage of the last untraced step, and what was alive at each peak."""
        case = self.case
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=0, world_size=case.world_size, store=FakeStore())
        gc.collect()
        if not self.on_cpu:
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
            # verl trains with expandable segments (`engine_workers.py` update_weights turns them on at its end).
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
            self.offset, self.reserved_offset = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        model, optimizer = self._build()
        row: dict[str, Any] = {}
        for step in range(3):
            self.traced = step == 2 and not self.on_cpu
            if step == 1 and not self.on_cpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            self.peaks, self.seconds = ({}, {}) if step < 2 else (self.peaks, self.seconds)
            self._step(model, optimizer)
            if step == 1:
                row = {
                    "peak_by_stage_bytes": dict(self.peaks),
                    "peak_allocated_bytes": max(self.peaks.values()),
                    "seconds_by_stage": {name: round(value, 4) for name, value in self.seconds.items()},
                    "resident_bytes": self._allocated(),
                }
                if not self.on_cpu:
                    row["reserved_bytes"] = self.reserved - self.reserved_offset
                    row["reserved_by_stream_bytes"] = self._by_stream()
        release(model, optimizer)
        row["alive_at_peak"] = self.held
        row["parameters"] = self.parameters
        row["offset_bytes"] = self.offset
        return row

    def _allocated(self) -> int:
        return 0 if self.on_cpu else torch.cuda.memory_allocated() - self.offset

    def _by_stream(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for segment in torch.cuda.memory_snapshot():
            found[str(segment["stream"])] += segment["total_size"]
        return dict(found)

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        if self.on_cpu:
            yield
            self.peaks[name] = 0
            return
        torch.cuda.synchronize()
        if self.traced:
            base = self._allocated()
            torch.cuda.memory._record_memory_history(max_entries=400_000, stacks="python")
            yield
            torch.cuda.synchronize()
            total, alive = alive_at_peak(torch.cuda.memory._snapshot()["device_traces"][0], base)
            torch.cuda.memory._record_memory_history(enabled=None)
            if total >= max((entry[0] for entry in self.held.get(name, [])), default=0):
                self.held[name] = [[total, base], *alive]
            return
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        yield
        torch.cuda.synchronize()
        self.seconds[name] = time.perf_counter() - start
        self.peaks[name] = max(self.peaks.get(name, 0), torch.cuda.max_memory_allocated() - self.offset)
        self.reserved = max(getattr(self, "reserved", 0), torch.cuda.max_memory_reserved())

    # --- building, as verl's `_build_module` and `_build_fsdp_module`

    def _build(self) -> tuple[nn.Module, Any]:
        case = self.case
        value = case.mode == "value"
        kind = transformers.AutoModelForTokenClassification if value else transformers.AutoModelForCausalLM
        # fsdp shards a built model; fsdp2 is sharded on the meta device and filled afterwards.
        on_meta = case.strategy == "fsdp2" and not self.on_cpu
        with torch.device("meta" if on_meta else self.device):
            model = kind.from_config(config_of(case), dtype=DTYPES[case.master_dtype])
            if case.lora_rank:
                model = self._adapters(model)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        if case.liger:
            from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance

            _apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=False, swiglu=True)
        if case.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if case.ulysses > 1:
            mesh = init_device_mesh(
                self.device, (case.world_size // case.ulysses, case.ulysses), mesh_dim_names=("dp", "sp")
            )
            model.config.ulysses_group = mesh["sp"].get_group()
        classes = case.wrap_classes or tuple(_base(model)._no_split_modules)
        model = self._fsdp1(model, classes) if case.strategy == "fsdp" else self._fsdp2(model, classes, on_meta)
        if case.activation_offload:
            from verl.utils.activation_offload import enable_activation_offloading

            enable_activation_offloading(model, case.strategy, case.gradient_checkpointing)
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-6)
        return model, optimizer

    def _adapters(self, model: nn.Module) -> nn.Module:
        from peft import LoraConfig, TaskType, get_peft_model

        model.enable_input_require_grads()
        model = get_peft_model(
            model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=self.case.lora_rank, lora_alpha=16, bias="none",
                              target_modules="all-linear"),
        )  # fmt: skip
        for parameter in model.parameters():
            parameter.data = parameter.data.to(DTYPES[self.case.master_dtype])
        return model

    def _mesh(self) -> Any:
        case = self.case
        if 0 < case.fsdp_size < case.world_size:
            shape = (case.world_size // case.fsdp_size, case.fsdp_size)
            return init_device_mesh(self.device, shape, mesh_dim_names=("ddp", "fsdp"))
        return init_device_mesh(self.device, (case.world_size,), mesh_dim_names=("fsdp",))

    def _fsdp2(self, model: nn.Module, classes: tuple[str, ...], on_meta: bool) -> nn.Module:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        case = self.case
        pinned = CPUOffloadPolicy(pin_memory=not self.on_cpu)
        options = {
            "mesh": self._mesh(),
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=DTYPES[case.param_dtype], reduce_dtype=DTYPES[case.reduce_dtype], cast_forward_inputs=True
            ),
            "offload_policy": pinned if case.offload_policy else OffloadPolicy(),
            "reshard_after_forward": case.reshard_after_forward,
        }
        by_name = set() if case.tied else {"embed_tokens", "lm_head"}
        for name, module in list(model.named_modules()):
            embedding = isinstance(module, nn.Embedding) and not case.tied
            named = name.rsplit(".", 1)[-1] in by_name and hasattr(module, "weight")
            if type(module).__name__ in classes or embedding or named:
                fully_shard(module, **options)
        fully_shard(model, **options)
        if on_meta:
            model.to_empty(device="cpu" if case.offload_policy else "cuda")
            if case.tied:
                _base(model).tie_weights()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter._local_tensor.normal_(0, 0.02)
            for name, buffer in list(model.named_buffers()):
                owner = model.get_submodule(name.rpartition(".")[0])
                filled = 1.0 / (1e4 ** torch.linspace(0, 1, buffer.numel(), device="cuda").view_as(buffer))
                owner._buffers[name.rpartition(".")[2]] = filled.to(buffer.dtype)
        return model

    def _fsdp1(self, model: nn.Module, classes: tuple[str, ...]) -> nn.Module:
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import _or_policy, lambda_auto_wrap_policy, transformer_auto_wrap_policy

        case, mesh = self.case, self._mesh()
        strategies = (
            (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD)
            if case.reshard_after_forward
            else (ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy._HYBRID_SHARD_ZERO2)
        )
        wrapped = {type(module) for module in model.modules() if type(module).__name__ in classes}
        policy: Callable[..., Any] = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=wrapped)
        if case.lora_rank:
            # verl wraps every trainable leaf on its own (`utils/fsdp_utils.py` get_fsdp_wrap_policy).
            leaves = functools.partial(lambda_auto_wrap_policy, lambda_fn=_is_trainable_leaf)
            policy = functools.partial(_or_policy, policies=[leaves, policy])
        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=policy,
            device_id=torch.cuda.current_device(),
            sharding_strategy=strategies[mesh.ndim - 1],
            mixed_precision=MixedPrecision(
                param_dtype=DTYPES[case.param_dtype], reduce_dtype=DTYPES[case.reduce_dtype], buffer_dtype=torch.float32
            ),
            device_mesh=mesh,
            forward_prefetch=False,
            use_orig_params=False,
        )

    # --- running, as verl's `forward_backward_batch`, `prepare_model_outputs` and `optimizer_step`

    def _step(self, model: nn.Module, optimizer: Any) -> None:
        case = self.case
        ids = torch.randint(0, case.vocab, (1, case.tokens), device=self.device)
        positions = torch.arange(case.tokens, device=self.device)[None]
        if case.packed_mask:
            positions = positions % (case.tokens // 4)
        inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": None}
        if case.mode == "log_prob":
            model.eval()
            with torch.no_grad():
                self._forward(model, inputs)
            if case.strategy == "fsdp2" and case.fsdp_size > 1:
                model.reshard()
            return
        model.train()
        for index in range(case.micro_batches):
            with self._sync(model, last=index == case.micro_batches - 1):
                loss = self._forward(model, inputs)
                with self._stage("bwd"):
                    loss.backward()
                del loss
        with self._stage("opt"):
            self._clip(model)
            optimizer.step()
        optimizer.zero_grad()

    def _forward(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        case = self.case
        cast = (
            torch.autocast(self.device, dtype=DTYPES[case.param_dtype])
            if case.param_dtype != "fp32"
            else contextlib.nullcontext()
        )
        with cast:
            if case.loss == "fused":
                return self._fused(model, inputs)
            with self._stage("fwd"):
                logits = model(**inputs, use_cache=False).logits.squeeze(0)
            with self._stage("loss"):
                return self._loss(logits, inputs["input_ids"][0])

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        case = self.case
        if case.mode == "value":
            return logits.squeeze(-1).float().mean()
        if case.temperature != 1.0:
            scale = torch.full((logits.shape[0], 1), case.temperature, device=logits.device)
            logits = logits / scale.clamp(min=1e-8).to(logits.dtype)
        entropy = self._entropy(logits) if case.entropy != "none" else None
        if case.loss == "ce32":
            log_probs = -nn.functional.cross_entropy(logits.float(), labels, reduction="none")
        else:
            log_probs = _log_probs(case.loss)(logits, labels, entropy is None)
        del logits
        loss = -log_probs.mean()
        return loss if entropy is None else loss - 0.001 * entropy.mean()

    def _entropy(self, logits: torch.Tensor) -> torch.Tensor:
        from verl.utils.torch_functional import entropy_from_logits, entropy_from_logits_with_chunking

        function = entropy_from_logits_with_chunking if "chunked" in self.case.entropy else entropy_from_logits
        if "compiled" in self.case.entropy:
            function = _compiled(function)
        if self.case.entropy_checkpointing:
            return torch.utils.checkpoint.checkpoint(function, logits)
        return function(logits)

    def _fused(self, model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """verl's torch backend of fused kernels: `models/transformers/dense_common.py` forward_with_torch_backend."""
        from verl.utils.experimental.torch_functional import FusedLinearForPPO

        inner = _base(model)
        labels = torch.roll(inputs["input_ids"], -1, -1)

        def forward(**named: Any) -> torch.Tensor:
            hidden = inner.model(**named).last_hidden_state
            log_probs, _ = FusedLinearForPPO()(hidden, inner.lm_head.weight, labels, temperature=1.0)
            return log_probs

        original, inner.forward = inner.forward, forward
        try:
            with self._stage("fwd"):
                return -model(**inputs, use_cache=False).mean()
        finally:
            inner.forward = original

    @contextlib.contextmanager
    def _sync(self, model: nn.Module, *, last: bool) -> Iterator[None]:
        if not self.case.no_sync or last:
            yield
        elif self.case.strategy == "fsdp":
            with model.no_sync():
                yield
        else:
            model.set_requires_gradient_sync(False)
            yield
            model.set_requires_gradient_sync(True)

    def _clip(self, model: nn.Module) -> None:
        if self.case.strategy == "fsdp":
            model.clip_grad_norm_(1.0)
            return
        from torch.nn.utils.clip_grad import _clip_grads_with_norm_, _get_total_norm

        parameters = list(model.parameters())
        gradients = [each.grad for each in parameters if each.grad is not None]
        # The norm of a DTensor is a DTensor; on a pretended world its value is this rank's alone.
        _clip_grads_with_norm_(parameters, 1.0, _get_total_norm(gradients, 2.0).to(self.device))


def release(model: nn.Module, optimizer: Any) -> None:
    """Free a case's tensors: FSDP1 keeps its modules alive in reference cycles through hooks."""
    optimizer.state.clear()
    for parameter in model.parameters():
        parameter.grad = None
        for name in ("_local_shard", "_mp_shard", "_full_param_padded", "_saved_grad_shard", "_cpu_grad"):
            if getattr(parameter, name, None) is not None:
                setattr(parameter, name, None)
        with contextlib.suppress(RuntimeError):
            parameter.data = parameter.data.new_empty(0)


def _base(model: nn.Module) -> nn.Module:
    inner = getattr(model, "_fsdp_wrapped_module", model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def _is_trainable_leaf(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return not list(module.named_children()) and weight is not None and weight.requires_grad


@functools.cache
def _compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return torch.compile(function, dynamic=True)


def _log_probs(loss: str) -> Callable[[torch.Tensor, torch.Tensor, bool], torch.Tensor]:
    if loss == "v2":
        from verl.utils.torch_functional import logprobs_from_logits_v2

        return lambda logits, labels, inplace: logprobs_from_logits_v2(logits, labels)
    from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

    return lambda logits, labels, inplace: -cross_entropy_loss(logits, labels, inplace_backward=inplace)[0]


def alive_at_peak(trace: list[dict[str, Any]], base_bytes: int) -> tuple[int, list[Any]]:
    """Replay the allocator's events; return the highest total and what had been allocated since the start of the
    stage and was alive then, the largest groups first: [bytes each, count, where]."""
    total = highest = base_bytes
    alive: dict[int, tuple[int, str]] = {}
    best: dict[int, tuple[int, str]] = {}
    rising = False
    for event in trace:
        if event["action"] == "alloc":
            alive[event["addr"]] = (event["size"], where(event.get("frames", ())))
            total += event["size"]
            rising = True
        elif event["action"] == "free_requested":
            if rising and total > highest:
                highest, best = total, dict(alive)
            rising = False
            total -= event["size"]
            alive.pop(event["addr"], None)
    if total > highest:
        highest, best = total, dict(alive)
    groups = Counter(best.values())
    ranked = sorted(groups.items(), key=lambda entry: -entry[0][0] * entry[1])
    return highest, [[size, count, frames] for (size, frames), count in ranked[:TRACED] if size * count > 2**20]


def where(frames: Any) -> str:
    """The innermost three Python frames outside torch.nn's plumbing, as `function:line`."""
    named = [
        f"{frame['name']}:{frame['line']}"
        for frame in frames
        if frame["filename"].endswith(".py") and "nn/modules/module" not in frame["filename"]
    ]
    return " < ".join(named[:3]) or "autograd"
