"""Building the model as verl's FSDP engine does, before it is sharded. Target interpreter.

Source: verl 0.9.1 `workers/engine/fsdp/transformer_impl.py` (`_build_module`, `_build_lora_module`),
`utils/fsdp_utils.py` (`get_init_weight_context_manager`), `models/transformers/monkey_patch.py`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from wizard.validation.setup import DTYPES, Context
from wizard.validation.ulysses import ATTENTION_NAME, register_attention


class CheckpointError(ValueError):
    """The checkpoint does not hold the model's tensors."""


def load(context: Context) -> Any:
    """Return the model in the master dtype: real on ranks that load weights, on the meta device elsewhere.

    Raises:
        CheckpointError: tensors are missing or have another shape.
        ValueError: the sequence parallel size does not divide the heads.
    """
    spec = context.spec
    config = _config(context)
    check_heads(config, spec.ulysses_size)
    if spec.ulysses_size > 1:
        register_attention(context.sequence_group)
    attention = ATTENTION_NAME if spec.ulysses_size > 1 else spec.attention
    meta = not getattr(config, "tie_word_embeddings", False) and not context.loads_weights
    model = _empty(context, config, attention) if meta else _real(context, config, attention)
    model.to(DTYPES[spec.master_dtype])
    if spec.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if spec.lora_rank:
        model = _with_lora(model, context)
    model.config.use_cache = False
    parameters = sum(parameter.numel() for parameter in model.parameters())
    context.reporter.metric(
        parameters=parameters,
        trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        on_meta_device=meta,
        tied_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        model_class=type(model).__name__,
    )
    model.train()
    return model


def check_heads(config: Any, ulysses_size: int) -> None:
    """verl 0.9.1 `models/transformers/monkey_patch.py`, `apply_monkey_patch`: heads must divide.

    Raises:
        ValueError: they do not.
    """
    text = config.get_text_config()
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    if heads % ulysses_size:
        raise ValueError(f"num_attention_heads {heads} must be divisible by ulysses_size {ulysses_size}")
    if kv_heads % ulysses_size and ulysses_size % kv_heads:
        raise ValueError(
            f"num_key_value_heads {kv_heads} must be divisible by ulysses_size {ulysses_size}, or the other way round"
        )


def _config(context: Context) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    spec = context.spec
    if spec.model:
        return AutoConfig.from_pretrained(spec.model, trust_remote_code=spec.trust_remote_code)
    return CONFIG_MAPPING[spec.model_config["model_type"]].from_dict(dict(spec.model_config))


def _auto_class(config: Any) -> Any:
    """verl 0.9.1 `utils/model.py`, `get_hf_auto_model_class`."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    vision = type(config) in AutoModelForImageTextToText._model_mapping
    return AutoModelForImageTextToText if vision else AutoModelForCausalLM


def _options(context: Context, attention: str) -> dict[str, Any]:
    options: dict[str, Any] = {"attn_implementation": attention}
    if context.spec.trust_remote_code:
        options["trust_remote_code"] = True
    return options


def _empty(context: Context, config: Any, attention: str) -> Any:
    with torch.device("meta"):
        return _auto_class(config).from_config(config, **_options(context, attention))


def random_model(context: Context) -> Any:
    """Return the whole model with random weights in the master dtype, the same in every run of the spec's seed."""
    return _random(context, _config(context), context.spec.attention)


def _random(context: Context, config: Any, attention: str) -> Any:
    spec = context.spec
    torch.manual_seed(spec.seed)
    # Random numbers are drawn where the model will live: 7B normal values take minutes on a CPU.
    place = contextlib.nullcontext() if context.device.type == "cpu" else torch.device(context.device)
    default = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[spec.master_dtype])
    try:
        with place:
            return _auto_class(config).from_config(config, **_options(context, attention))
    finally:
        torch.set_default_dtype(default)


def _real(context: Context, config: Any, attention: str) -> Any:
    spec = context.spec
    if spec.random_weights or not spec.model:
        return _random(context, config, attention)
    model, loaded = _auto_class(config).from_pretrained(
        spec.model,
        config=config,
        torch_dtype=DTYPES[spec.master_dtype],
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        local_files_only=Path(spec.model).is_dir(),
        **_options(context, attention),
    )
    _check_loaded(context, loaded)
    return model


def _check_loaded(context: Context, loaded: dict[str, Any]) -> None:
    missing = sorted(loaded.get("missing_keys", ()))
    mismatched = sorted(str(entry[0]) for entry in loaded.get("mismatched_keys", ()))
    if missing:
        raise CheckpointError(
            f"checkpoint lacks {_some(missing)}: transformers fills missing tensors with random numbers, and verl "
            "would train on them"
        )
    if mismatched:
        raise CheckpointError(f"size mismatch for {_some(mismatched)}: config.json and weights are of different models")
    unexpected = sorted(loaded.get("unexpected_keys", ()))
    if unexpected:
        context.reporter.log(f"the checkpoint holds tensors the model does not use: {_some(unexpected)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _with_lora(model: Any, context: Context) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    spec = context.spec
    model.enable_input_require_grads()
    # The adapters' random numbers, too, are the same in every run.
    torch.manual_seed(spec.seed)
    settings = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=spec.lora_rank,
        lora_alpha=spec.lora_alpha,
        target_modules="all-linear",
        bias="none",
    )
    model = get_peft_model(model, settings)
    dtype = DTYPES[spec.master_dtype]
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    return model
