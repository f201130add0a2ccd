"""Sharding the model exactly as verl's FSDP engine does. Target interpreter.

Source: verl 0.9.1 `utils/fsdp_utils.py` (`get_fsdp_wrap_policy`, `apply_fsdp2`, `_select_fsdp2_wrap_targets`,
`fsdp2_load_full_state_dict`), `workers/engine/fsdp/transformer_impl.py` (`_build_fsdp_module`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from wizard.validation.setup import DTYPES, Context


class WrapError(ValueError):
    """The wrap policy does not fit the model; the message is for the person."""


def wrap(model: nn.Module, context: Context) -> nn.Module:
    """Return the sharded model on its device, and prove the number of units and that nothing is left on meta.

    Raises:
        WrapError: no class of the policy is in the model, other units than planned, or a tensor left on meta.
    """
    spec = context.spec
    if spec.strategy in ("none", "ddp"):
        return _whole(model, context)
    names = _class_names(model, spec.wrap_classes)
    if spec.strategy == "fsdp":
        model = _fsdp1(model, context, names)
        units = fsdp1_units(model)
    else:
        model = _fsdp2(model, context, names)
        units = fsdp2_units(model)
    prove_wrapped(model, units, context, names)
    return model


def prove_wrapped(model: nn.Module, units: int, context: Context, names: tuple[str, ...] | None) -> None:
    """Prove the number of units and that nothing is left on meta, and tell what the shards are.

    Raises:
        WrapError: other units than planned, or a tensor left on meta.
    """
    spec = context.spec
    left = [name for name, tensor in _tensors(model) if tensor.is_meta]
    if left:
        raise WrapError(f"{left[0]} is still on the meta device, with {len(left) - 1} more: it never got its data")
    sharded = list(model.parameters())
    context.reporter.metric(
        fsdp_units=units,
        shards=dist.get_world_size(context.mesh.get_group(mesh_dim=context.mesh.ndim - 1)),
        local_parameters=sum(_local(parameter).numel() for parameter in sharded),
        master_dtype=_names(parameter.dtype for parameter in sharded),
        param_dtype=spec.param_dtype,
        reduce_dtype=spec.reduce_dtype,
        buffer_dtype=_names(buffer.dtype for buffer in model.buffers()),
    )
    if spec.expected_units and units != spec.expected_units:
        raise WrapError(f"expected {spec.expected_units} FSDP units, found {units}: wrap classes {list(names or ())}")


def _whole(model: nn.Module, context: Context) -> nn.Module:
    """Return the model unsharded, with its gradients averaged over the ranks where there are several."""
    model.to(context.device)
    context.reporter.metric(shards=1, master_dtype=_names(parameter.dtype for parameter in model.parameters()))
    if context.spec.strategy == "none":
        return model
    return nn.parallel.DistributedDataParallel(
        model, device_ids=[context.device.index] if context.device.type == "cuda" else None
    )


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in dtypes}))


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _tensors(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _class_names(model: nn.Module, given: tuple[str, ...]) -> tuple[str, ...] | None:
    own = getattr(model, "_no_split_modules", None)
    return given or (tuple(sorted(own)) if own is not None else None)


def _check_classes(model: nn.Module, names: tuple[str, ...] | None) -> tuple[type[nn.Module], ...]:
    if names is None:
        return ()
    found = {type(module).__name__: type(module) for module in model.modules()}
    classes = tuple(found[name] for name in names if name in found)
    if not classes:
        raise WrapError(f"Could not find any of the transformer layer classes to wrap in the model: {list(names)}")
    return classes


def _policy(model: nn.Module, context: Context, names: tuple[str, ...] | None) -> Any:
    from torch.distributed.fsdp.wrap import (
        _or_policy,
        lambda_auto_wrap_policy,
        size_based_auto_wrap_policy,
        transformer_auto_wrap_policy,
    )

    smallest = context.spec.min_num_params
    policies: list[Any] = []
    if context.spec.lora_rank and not smallest:

        def trained_leaf(module: nn.Module) -> bool:
            weight = getattr(module, "weight", None)
            return not list(module.named_children()) and weight is not None and bool(weight.requires_grad)

        policies.append(functools.partial(lambda_auto_wrap_policy, lambda_fn=trained_leaf))
    if smallest > 0:
        policies.append(functools.partial(size_based_auto_wrap_policy, min_num_params=smallest))
    elif names is not None:
        classes = set(_check_classes(model, names))
        policies.append(functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=classes))
    return functools.partial(_or_policy, policies=policies) if policies else None


def _fsdp1(model: nn.Module, context: Context, names: tuple[str, ...] | None) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

    spec = context.spec
    hybrid, full = context.mesh.ndim == 2, spec.reshard_after_forward
    if hybrid:
        strategy = ShardingStrategy.HYBRID_SHARD if full else ShardingStrategy._HYBRID_SHARD_ZERO2
    else:
        strategy = ShardingStrategy.FULL_SHARD if full else ShardingStrategy.SHARD_GRAD_OP

    def materialise(module: nn.Module) -> None:
        if not context.loads_weights:
            module.to_empty(device=context.device, recurse=False)

    return FullyShardedDataParallel(
        model,
        param_init_fn=materialise,
        auto_wrap_policy=_policy(model, context, names),
        device_id=context.device,
        sharding_strategy=strategy,
        mixed_precision=MixedPrecision(
            param_dtype=DTYPES[spec.param_dtype],
            reduce_dtype=DTYPES[spec.reduce_dtype],
            buffer_dtype=DTYPES[spec.buffer_dtype],
        ),
        sync_module_states=True,
        device_mesh=context.mesh,
        forward_prefetch=spec.forward_prefetch,
        use_orig_params=spec.use_orig_params,
    )


def fsdp1_units(model: nn.Module) -> int:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return len(FullyShardedDataParallel.fsdp_modules(model))


def _fsdp2(model: nn.Module, context: Context, names: tuple[str, ...] | None) -> nn.Module:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    spec = context.spec
    # verl builds fsdp's wrap policy for both strategies, so its refusal of unknown names holds here too.
    if not spec.min_num_params:
        _check_classes(model, names)
    if not names:
        raise WrapError("no wrap class: the model has no `_no_split_modules`, and verl's fsdp2 stops")
    settings: dict[str, Any] = {
        "mesh": context.mesh,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=DTYPES[spec.param_dtype], reduce_dtype=DTYPES[spec.reduce_dtype], cast_forward_inputs=True
        ),
        "reshard_after_forward": spec.reshard_after_forward,
    }
    if spec.offload_policy:
        settings["offload_policy"] = CPUOffloadPolicy(pin_memory=context.device.type == "cuda")
    full_state = model.state_dict()
    targets = _fsdp2_targets(model, names)
    for module in targets:
        fully_shard(module, **settings)
    fully_shard(model, **settings)
    if spec.forward_prefetch:
        for module, following in pairwise(targets):
            module.set_modules_to_forward_prefetch([following])  # type: ignore[operator]
    _fill(model, full_state, context)
    return model


def _fsdp2_targets(model: nn.Module, names: tuple[str, ...]) -> list[nn.Module]:
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    ends = () if tied else ("embed_tokens", "lm_head")
    return [
        module
        for name, module in model.named_modules()
        if type(module).__name__ in names
        or (isinstance(module, nn.Embedding) and not tied)
        or (name.rpartition(".")[2] in ends and hasattr(module, "weight"))
    ]


def _fill(model: nn.Module, full_state: dict[str, Any], context: Context) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    if context.rank == 0:
        model.to(context.device)
    else:
        model.to_empty(device=context.device)
    offload = context.spec.offload_policy
    options = StateDictOptions(full_state_dict=True, cpu_offload=offload, broadcast_from_rank0=True)
    set_model_state_dict(model, full_state, options=options)
    # Rotary tables are in no state dict: they have to be sent along. Sorted, since the order may differ by rank.
    for _, buffer in sorted(model.named_buffers(), key=lambda entry: entry[0]):
        dist.broadcast(buffer, src=0)
    if offload and context.device.type == "cuda":
        model.to("cpu")
        for buffer in model.buffers():
            buffer.data = buffer.data.to(context.device)


def fsdp2_units(model: nn.Module) -> int:
    from torch.distributed.fsdp import FSDPModule

    return sum(isinstance(module, FSDPModule) for module in model.modules())
