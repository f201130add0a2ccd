"""A model's files: configuration, weights, code of its own, and the hub they come from."""

from __future__ import annotations

import re

from wizard.diagnosis.evidence import Cause, set_fields
from wizard.findings import Fix
from wizard.plan import Plan


def _allow_code(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    if plan.model.trust_remote_code:
        return ()
    return (set_fields("run the model's own code", model__trust_remote_code=True),)


OWN_CODE = Cause(
    "remote-code-error",
    "the model's own code failed",
    re.compile(r"^(?P<error>(?:[\w.]*\.)?\w*(?:Error|Exception)\b.*)"),
    "{place} of the model's own code raised {error}.",
    "Take another revision of the model, or the transformers release its code was written for (config.json, "
    "transformers_version); else it is the author's to repair.",
    frames=re.compile(
        r"transformers_modules/\S*?(?P<place>\w+\.py:\w+)(?:\n[^\n]*/(?:torch|transformers)/[^\n]*)*\Z"
    ),
    source="the model's repository",
)
"""Tried last: whatever has a cause of its own is that, also inside such code."""

CAUSES = (
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
        "remote-code-file",
        "a Python file of the model is missing",
        re.compile(r"does not appear to have a file named (?P<file>\S+\.py)\b"),
        "The model's config.json names {file}, and the folder or repository has no such file.",
        "Download it from the model's repository, or take auto_map out of config.json if transformers knows the model.",
        source="transformers `utils/hub.py`",
    ),
    Cause(
        "remote-code-class",
        "the model's own code lacks a class that config.json names",
        re.compile(r"module 'transformers_modules\.[^']*' has no attribute '(?P<name>\w+)'"),
        "config.json's auto_map names {name}, and the Python file does not define it: they are of different versions.",
        "Take config.json and the Python files from one commit of the repository (model.revision).",
        source="transformers `dynamic_module_utils.py` (`get_class_in_module`)",
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
        "config-damaged",
        "config.json cannot be read",
        re.compile(r"config file at '(?P<file>[^']+)' is not a valid JSON file"),
        "{file} is not valid JSON: it is cut off, an error page, or was edited by hand.",
        "Download config.json again, or correct it (python -m json.tool shows the place).",
        source="transformers `configuration_utils.py` (`_get_config_dict`)",
    ),
    Cause(
        "checkpoint-file-missing",
        "a weight file is missing",
        re.compile(r"No such file or directory: '?(?P<file>\S+\.(?:safetensors|bin|pt|pth))"),
        "The checkpoint's index names {file}, and there is no such file.",
        "Download that file again; on a shared disk, check that the download had finished on every node.",
        source="safetensors; transformers `modeling_utils.py`",
    ),
    Cause(
        "tied-head-missing",
        "the checkpoint has no head of its own, and config.json says it has",
        re.compile(r"checkpoint lacks (?P<name>\S*lm_head\.weight):"),
        "config.json has tie_word_embeddings false, and the checkpoint holds no {name}: it was saved with a tied head.",
        "Set tie_word_embeddings to true in config.json; verl then also loads the whole model on every rank.",
        rule="host-memory",
        source="verl-wizard's validation; transformers `modeling_utils.py` (`tie_weights`)",
    ),
    Cause(
        "checkpoint-tensor-missing",
        "the checkpoint lacks tensors",
        re.compile(
            r"checkpoint lacks (?P<names>.+?)(?:: transformers fills|$)|Missing key\(s\) in state_dict: (?P<keys>.+)"
        ),
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
