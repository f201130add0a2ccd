"""Packages, drivers and builds that do not fit each other."""

from __future__ import annotations

import importlib.util
import re

from wizard.diagnosis.evidence import Cause, Level, set_fields
from wizard.findings import Fix
from wizard.plan import Plan


def _sdpa(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    if plan.model.attention != "flash_attention_2" or plan.actor.ulysses_size > 1:
        return ()
    return (set_fields("attention by torch's sdpa", model__attention="sdpa"),)


def _own_interpreter(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    if not plan.target.python or importlib.util.find_spec("torch") is None:
        return ()
    return (set_fields("the interpreter the wizard runs in", target__python=""),)


CAUSES = (
    Cause(
        "torch-missing",
        "the interpreter has no torch",
        re.compile(r"No module named '?torch\b"),
        "The interpreter that was to train and validate has no torch.",
        "Give the interpreter of the environment that trains (--python), or install torch there.",
        fixes=_own_interpreter,
        source="CPython",
    ),
    Cause(
        "flash-attn-build",
        "flash-attn was built for another torch",
        re.compile(
            r"flash_attn.*undefined symbol|undefined symbol.*flash|flash_attn_2_cuda.*(?:cannot open|undefined)"
        ),
        "flash-attn's compiled library does not fit the torch that is installed, so importing it fails.",
        "Install the flash-attn wheel for exactly this torch, CUDA and Python; or use sdpa (not with Ulysses or a "
        "critic).",
        rule="flash-attn-missing",
        fixes=_sdpa,
        source="the dynamic loader",
    ),
    Cause(
        "flash-attn-missing",
        "flash-attn is not installed",
        re.compile(
            r"FlashAttention2 has been toggled on, but it cannot be used|flash_attn seems to be not installed"
            r"|No module named '?flash_attn|is not a value head model, please install trl"
        ),
        "The model was asked to run with flash attention, and the package is not there.",
        "pip install flash-attn --no-build-isolation, or use sdpa. verl's critic knows only flash attention.",
        rule="flash-attn-missing",
        fixes=_sdpa,
        source="transformers `modeling_utils.py`; verl 0.9.1 `utils/model.py` (`load_valuehead_model`)",
    ),
    Cause(
        "flash-attn-gpu",
        "this GPU is too old for flash-attn",
        re.compile(r"FlashAttention only supports Ampere GPUs or newer"),
        "flash-attn 2 needs compute capability 8.0.",
        "Use sdpa.",
        rule="attention-compute-capability",
        fixes=_sdpa,
        source="flash-attention `csrc/flash_attn/flash_api.cpp`",
    ),
    Cause(
        "driver-too-old",
        "the NVIDIA driver is older than torch's CUDA",
        re.compile(
            r"The NVIDIA driver on your system is too old \(found version (?P<found>\d+)\)"
            r"|CUDA driver version is insufficient"
        ),
        "torch was built for a newer CUDA than the driver supports.",
        "Update the driver, or install the torch build for the driver's CUDA version.",
        source="torch `c10/cuda/CUDAFunctions.cpp`",
    ),
    Cause(
        "no-kernel-image",
        "a package has no code for this GPU",
        re.compile(
            r"no kernel image is available for execution on the device"
            r"|sm_(?P<arch>\d+) is not compatible with the current PyTorch"
        ),
        "torch, or an extension, was compiled without this GPU's architecture.",
        "Install a build that lists this GPU's compute capability (torch.cuda.get_arch_list()).",
        source="CUDA error 209; torch `cuda/__init__.py`",
    ),
    Cause(
        "no-cuda",
        "torch sees no GPU",
        re.compile(
            r"No CUDA GPUs are available|Torch not compiled with CUDA enabled|no NVIDIA driver on your system"
            r"|NCCL.*no GPUs found"
        ),
        "torch found no usable GPU in this process.",
        "Check nvidia-smi, CUDA_VISIBLE_DEVICES, the container's --gpus flag, and that torch is not the CPU build.",
        rule="visible-devices",
        source="torch `cuda/__init__.py`, `c10/cuda/CUDAFunctions.cpp`",
    ),
    Cause(
        "visible-devices",
        "CUDA_VISIBLE_DEVICES is not read as expected",
        re.compile(
            r"invalid literal for int\(\) with base 10: '(?P<value>(?:MIG|GPU)-[^']*)"
            r"|CUDA error: invalid device ordinal"
        ),
        "A library reads CUDA_VISIBLE_DEVICES as numbers, or a rank asks for a GPU that is not visible.",
        "Give indices (CUDA_VISIBLE_DEVICES=0,1) and as many as n_gpus_per_node, before ray start.",
        rule="visible-devices",
        source="vLLM `platforms/cuda.py`; CUDA error 101",
    ),
    Cause(
        "vllm-mismatch",
        "vLLM does not fit torch or transformers",
        re.compile(
            r"'_C' object has no attribute|vllm.*undefined symbol|vllm/_C.*cannot open shared object"
            r"|has no attribute '?all_special_tokens_extended|cannot import name 'MaxLoRARanks'"
        ),
        "vLLM was built for, or reaches into, another version of torch or transformers than the one installed.",
        "Install the versions verl's own metadata names: pip install 'verl[vllm]' in a fresh environment.",
        rule="package-version",
        source="vLLM `_custom_ops.py`, `transformers_utils/tokenizer.py`; verl `utils/vllm`",
    ),
    Cause(
        "transfer-queue",
        "verl's trainer needs packages that plain `pip install verl` leaves out",
        re.compile(r"No module named '?transfer_queue"),
        "verl 0.9's default trainer imports TransferQueue, which only its extras install.",
        "pip install 'verl[vllm]' (or verl[sglang]); or run with trainer.use_v1=false.",
        source="verl 0.9.1 `trainer/main_ppo.py`",
    ),
    Cause(
        "package-missing",
        "a Python package is missing",
        re.compile(
            r"ModuleNotFoundError: No module named '(?P<name>[\w.]+)'"
            r"|packages that were not found in your environment: (?P<names>[\w, -]+)"
        ),
        "{name}{names} is not installed in the interpreter that trains.",
        "Install {name}{names} there; every node needs the same environment.",
        level=Level.SYMPTOM,
        source="CPython; transformers `dynamic_module_utils.py` (`check_imports`)",
    ),
    Cause(
        "shared-library",
        "a shared library is missing",
        re.compile(r"ImportError: (?P<name>[\w.+-]+\.so[\w.]*): (?:cannot open shared object|undefined symbol)"),
        "The compiled library {name} cannot be loaded.",
        "Install the package's build for this torch and CUDA; look at LD_LIBRARY_PATH for an older copy.",
        level=Level.SYMPTOM,
        source="the dynamic loader",
    ),
)
