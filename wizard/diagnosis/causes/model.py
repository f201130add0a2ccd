"""Loading and wrapping a model: checkpoints, remote code, meta tensors, wrap classes, mixed units."""

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


def _allow_code(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    if plan.model.trust_remote_code:
        return ()
    return (set_fields("run the model's own code", model__trust_remote_code=True),)


def _param_offload_off(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    return (set_fields("parameters stay on the GPU", actor__param_offload=False),) if plan.actor.param_offload else ()


CAUSES = (
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
        "wrap-class-none",
        "fsdp2 has no wrap class",
        re.compile(r"object of type 'NoneType' has no len\(\)"),
        "transformer_layer_cls_to_wrap is null, or the model names no layer class, and verl's fsdp2 stops.",
        "Name the class of the repeated layers.",
        frames=re.compile(r"apply_fsdp2"),
        rule="wrap-class-missing",
        fixes=own_classes,
        source="verl 0.9.1 `utils/fsdp_utils.py` (`apply_fsdp2`)",
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
        "meta-tensor",
        "a tensor was left on the meta device",
        re.compile(r"Cannot copy out of meta tensor|(?P<name>[\w.]+) is still on the meta device"),
        "A parameter or buffer never got its data: it is in no checkpoint file, or is a buffer that is not saved.",
        "Check that the checkpoint is complete and of this model class; validate with real weights to see its name.",
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
    Cause(
        "remote-code",
        "the model brings its own code, and nobody agreed to run it",
        re.compile(r"trust_remote_code=True|contains custom code which must be executed"),
        "The model's config names Python files of its own; without trust_remote_code nothing can be loaded.",
        "Read the files, then set trust_remote_code for the model and the data.",
        rule="remote-code",
        fixes=_allow_code,
        source="transformers `dynamic_module_utils.py`",
    ),
    Cause(
        "checkpoint-truncated",
        "a checkpoint file is damaged",
        re.compile(
            r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|InvalidHeader"
            r"|PytorchStreamReader failed|invalid load key"
        ),
        "A weight file is cut off or is not a weight file at all (a Git LFS pointer, an error page).",
        "Download the file again and compare its size with the hub's.",
        source="safetensors; torch `caffe2/serialize/inline_container.cc`",
    ),
    Cause(
        "checkpoint-tensor-missing",
        "the checkpoint lacks tensors",
        re.compile(r"checkpoint lacks (?P<names>.+)|Missing key\(s\) in state_dict: (?P<keys>.+)"),
        "These tensors of the model are in no checkpoint file: {names}{keys}.",
        "Use the checkpoint of this very model; transformers would fill missing tensors with random numbers.",
        source="torch `nn/modules/module.py`; verl-wizard's validation",
    ),
    Cause(
        "checkpoint-mismatch",
        "the checkpoint's shapes are not the model's",
        re.compile(r"size mismatch for (?P<name>[\w.]+)|Error\(s\) in loading state_dict for (?P<cls>\w+)"),
        "The tensor {name}{cls} has another shape in the checkpoint than in the model.",
        "config.json and weights belong to different models or vocabulary sizes.",
        source="torch `nn/modules/module.py`",
    ),
    Cause(
        "model-not-found",
        "the model's files were not found",
        re.compile(
            r"Error no file named (?P<weights>[^,]+)|does not appear to have a file named (?P<file>\S+)"
            r"|is not a local folder and is not a valid model identifier"
            r"|couldn't connect to '?https://huggingface\.co|We couldn't connect|LocalEntryNotFoundError"
            r"|Incorrect path_or_model_id"
        ),
        "The model is neither in the folder, nor in the cache, nor can the hub be reached.",
        "Check the path on every node, or download the model where there is a network (HF_HOME shared by the nodes).",
        source="transformers `utils/hub.py`",
    ),
    Cause(
        "model-gated",
        "the hub refuses the model",
        re.compile(r"GatedRepoError|Access to model .* is restricted|401 Client Error|403 Client Error"),
        "The repository needs a licence you have not accepted, or a token.",
        "Accept the licence on the model's page and run huggingface-cli login on every node.",
        source="huggingface_hub `utils/_http.py`",
    ),
    Cause(
        "model-unknown-type",
        "transformers does not know the model",
        re.compile(
            r"model type `(?P<name>[^`]+)` but Transformers does not recognize|Unrecognized configuration class"
            r"|KeyError: '(?P<type>qwen3\w*|gemma3\w*|gpt_oss|llama4\w*)'"
        ),
        "The installed transformers has no model type {name}{type}.",
        "Install a newer transformers within verl's range.",
        rule="package-version",
        source="transformers `models/auto/configuration_auto.py`",
    ),
)
