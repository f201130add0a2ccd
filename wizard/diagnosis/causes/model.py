"""Wrapping a model: wrap classes, meta tensors, mixed units, parameters that are elsewhere."""

from __future__ import annotations

import re

from wizard.diagnosis.evidence import Cause, set_fields
from wizard.findings import Fix
from wizard.plan import Plan


def own_classes(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    """Wrap what the structural detector picked, else leave the choice to the model."""
    fixes: tuple[Fix, ...] = ()
    found = plan.architecture.layer_classes if plan.architecture else ()
    detected = tuple(entry.name for entry in found if entry.detected)
    if detected and detected != plan.actor.wrap_classes:
        fixes += (set_fields(f"wrap {', '.join(detected)}", actor__wrap_classes=detected, actor__min_num_params=0),)
    if plan.actor.wrap_classes and plan.architecture and plan.architecture.no_split_modules:
        fixes += (set_fields("the model's own choice", actor__wrap_classes=(), actor__min_num_params=0),)
    return fixes


def _lora_units(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    if plan.actor.min_num_params:
        return (set_fields("wrap by class", actor__min_num_params=0),)
    return (set_fields("original parameters", actor__use_orig_params=True),) if not plan.actor.use_orig_params else ()


def _fsdp2(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    return () if plan.actor.strategy == "fsdp2" else (set_fields("fsdp2", actor__strategy="fsdp2"),)


def _param_offload_off(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    return (set_fields("parameters stay on the GPU", actor__param_offload=False),) if plan.actor.param_offload else ()


CAUSES = (
    Cause(
        "wrap-class-none",
        "there is no wrap class",
        re.compile(
            r"object of type 'NoneType' has no len\(\)|no wrap class: the model has no"
            r"|transformer layer class(?:es)? to wrap in the model:?\s*(?:\[\]|\(\)|set\(\)|$)"
        ),
        "transformer_layer_cls_to_wrap is null or empty, and the model names no layer class of its own.",
        "Name the class of the repeated layers.",
        frames=re.compile(r"apply_fsdp2|wrap_policy|wrap\.py:"),
        rule="wrap-class-missing",
        fixes=own_classes,
        source="verl 0.9.1 `utils/fsdp_utils.py` (`apply_fsdp2`)",
    ),
    Cause(
        "wrap-class-missing",
        "none of the wrap classes is in the model",
        re.compile(
            r"Could not find (?:any of )?the transformer layer class(?:es)? to wrap in the model:?\s*(?P<names>.*)"
        ),
        "The wrap policy names {names}, and the model has no such class.",
        "Choose the class of the repeated layers; letter case counts.",
        rule="wrap-class-missing",
        fixes=own_classes,
        source="verl 0.9.1 `utils/fsdp_utils.py` (`get_fsdp_wrap_policy`)",
    ),
    Cause(
        "unit-count",
        "the model became other FSDP units than planned",
        re.compile(r"expected (?P<expected>\d+) FSDP units?, (?:found|got) (?P<found>\d+)"),
        "Wrapping made {found} FSDP units instead of {expected}.",
        "Choose the class of the repeated layers as wrap class.",
        rule="wrap-class-missing",
        fixes=own_classes,
        source="verl-wizard's validation",
    ),
    Cause(
        "wrap-nested",
        "an FSDP unit lies inside another",
        re.compile(r"Cannot concatenate overlapping meshes"),
        "The wrap classes make units inside units, and fsdp2 refuses to shard a parameter twice.",
        "Wrap only the repeated layers, not modules inside them or around them.",
        rule="wrap-nested",
        fixes=own_classes,
        source="torch `distributed/fsdp/_fully_shard`, `distributed/device_mesh.py`",
    ),
    Cause(
        "meta-tensor",
        "a tensor was left on the meta device",
        re.compile(
            r"Cannot copy out of meta tensor|(?P<name>[\w.]+) is still on the meta device"
            r"|on device meta is not on the expected device|Expected all tensors to be on the same device.*\bmeta\b"
        ),
        "A tensor never got its data: it is in no checkpoint file, is a buffer that is not saved, or is a plain "
        "attribute that the model's code fills while it is built, on a device without data.",
        "Check that the checkpoint is complete and of this model class; in code of your own, make such a tensor in "
        "forward, or register it as a persistent buffer.",
        source="torch `nn/modules/module.py`",
    ),
    Cause(
        "embedding-outside-forward",
        "a wrapped embedding or head was used outside its forward",
        re.compile(r"'weight' must be 2-D"),
        "The embedding or the head is an FSDP unit of its own, and its weight was read while it was sharded.",
        "Wrap only the repeated layers, not the embedding or head.",
        rule="wrap-embedding",
        fixes=own_classes,
        source="torch `nn/functional.py` (`embedding`)",
    ),
    Cause(
        "unit-mixed-dtypes",
        "one FSDP unit holds several dtypes",
        re.compile(r"Must flatten tensors with uniform dtype but got (?P<dtypes>.*)"),
        "fsdp flattens a unit's parameters into one tensor, and they have different dtypes: {dtypes}.",
        "Cast the model to one dtype before it is wrapped, or use fsdp2.",
        fixes=_fsdp2,
        source="torch `distributed/fsdp/_flat_param.py`",
    ),
    Cause(
        "unit-mixed-grad",
        "one FSDP unit holds frozen and trained parameters",
        re.compile(r"[Uu]niform `requires_grad`"),
        "With LoRA, fsdp cannot flatten frozen and trained parameters into one unit.",
        "Wrap by class with min_num_params 0, or set use_orig_params.",
        rule="lora-size-wrap",
        fixes=_lora_units,
        source="torch `distributed/fsdp/_flat_param.py`",
    ),
    Cause(
        "parameter-on-cpu",
        "parameters were on the host when the GPU needed them",
        re.compile(r"Expects tensor to be on the compute device|set the storage of a tensor on device \"cpu\""),
        "Offloaded parameters were used before they were brought back.",
        "Turn param_offload (or offload_policy on verl < 0.9) off for this role.",
        fixes=_param_offload_off,
        source="torch `distributed/fsdp/_flat_param.py`, `aten/src/ATen/native/Resize.h`",
    ),
)
