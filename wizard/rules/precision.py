"""dtypes of parameters, compute, reduction and buffers."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.findings import Severity, Stage
from wizard.rules.case import Case, Engine
from wizard.rules.registry import Found, rule, set_key
from wizard.verl.keys import MODEL

_NAMES = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "16": "fp16",
    "fp32": "fp32", "float32": "fp32", "32": "fp32",
}  # fmt: skip
_MIXED = ("param_dtype", "reduce_dtype", "buffer_dtype")
_DEFAULTS = {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
TRAINED_MASTER = "fp32"


def _dtype(case: Case, role: Engine, name: str) -> str | None:
    """Return a dtype's name, None for one verl cannot read."""
    given = case.engine(role, f"mixed_precision.{name}")
    return _NAMES.get(str(_DEFAULTS[name] if given is None else given))


def _key(case: Case, role: Engine, name: str) -> str:
    return case.engine_key(role, f"mixed_precision.{name}")


@rule(
    "dtype-unknown", "dtypes are names that verl reads", Severity.ERROR, Stage.WORKERS,
    ("actor_rollout_ref.actor.fsdp_config.model_dtype",), "verl 0.9.1 utils/torch_dtypes.py:69 (PrecisionType)",
)  # fmt: skip
def dtype_unknown(case: Case) -> Iterator[Found]:
    """A misspelt dtype composes and passes verl's first check; workers stop with `unexpected precision`."""
    for role in case.engines:
        values = {_key(case, role, name): case.engine(role, f"mixed_precision.{name}") for name in _MIXED}
        values[case.engine_key(role, "model_dtype")] = case.engine(role, "model_dtype")
        for key, value in values.items():
            if value is not None and str(value) not in _NAMES:
                default = _DEFAULTS.get(key.rsplit(".", 1)[-1], "fp32")
                yield Found(
                    key, "verl knows fp32, bf16 and fp16; workers stop on anything else.", (set_key(key, default),)
                )


@rule(
    "reduce-dtype", "gradients are reduced in fp32", Severity.ERROR, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:391-401; torch 2.13 FSDP MixedPrecision",
)  # fmt: skip
def reduce_dtype(case: Case) -> Iterator[Found]:
    """Sums over ranks in bf16 keep 8 bits: small gradients are rounded away, more of them the more GPUs there are.
    Nothing says so; training only learns worse. fp16 overflows besides. Where the master weights are bf16 as well,
    FSDP rounds the sum to bf16 afterwards in any case, and it is a warning."""
    for role in case.trained:
        found = _dtype(case, role, "reduce_dtype")
        if found in ("bf16", "fp16"):
            key = _key(case, role, "reduce_dtype")
            text = f"the {role}'s gradients are summed over {case.ranks(role)} GPUs in {found}: most bits are lost."
            pure = found == "bf16" == _NAMES.get(str(case.engine(role, "model_dtype")))
            yield Found(key, text, (set_key(key, "fp32"),), Severity.WARNING if pure else None)


@rule(
    "master-dtype", "trained weights are kept in fp32", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.model_dtype",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py (_build_module); verl-project/verl issue 5308",
)  # fmt: skip
def master_dtype(case: Case) -> Iterator[Found]:
    """With half-precision master weights there is no fp32 copy: an update smaller than 1/256 of a weight is lost,
    and AdamW's states are half precision too. It saves 10 bytes a parameter."""
    for role in case.trained:
        key = case.engine_key(role, "model_dtype")
        found = _NAMES.get(str(case.get(key)))
        if found in ("bf16", "fp16") and not case.lora_rank:
            yield Found(key, f"the {role}'s master weights and optimizer are {found}: small updates are rounded away.",
                        (set_key(key, TRAINED_MASTER),))  # fmt: skip


@rule(
    "fp16-range", "a bf16 model is not run in fp16", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:403-406 (ShardedGradScaler)",
)  # fmt: skip
def fp16_range(case: Case) -> Iterator[Found]:
    """bf16 reaches 3e38, fp16 65504: activations of a model trained in bf16 may overflow. verl adds a loss scaler,
    which saves gradients, not activations."""
    for role in case.engines:
        architecture = case.architecture(role)
        if architecture and architecture.dtype == "bfloat16" and _dtype(case, role, "param_dtype") == "fp16":
            capable = case.capability is None or case.capability >= (8, 0)
            key = _key(case, role, "param_dtype")
            text = "the model was trained in bf16, whose values may not fit fp16 (largest 65504)."
            yield Found(key, text, (set_key(key, "bf16"),) if capable else (set_key(key, "fp32"),))


@rule(
    "bf16-compute-capability", "the GPU computes in bf16", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",),
    "NVIDIA compute capability tables; torch 2.13 cuda/__init__.py (is_bf16_supported)",
)  # fmt: skip
def bf16_compute_capability(case: Case) -> Iterator[Found]:
    """Tensor cores know bf16 from compute capability 8.0 (Ampere). Older GPUs emulate it, many times slower."""
    if case.capability is None or case.capability >= (8, 0):
        return
    for role in case.engines:
        if _dtype(case, role, "param_dtype") == "bf16":
            key = _key(case, role, "param_dtype")
            version = ".".join(map(str, case.capability))
            yield Found(key, f"GPUs of compute capability {version} emulate bf16, many times slower than fp16.",
                        (set_key(key, "fp16"),))  # fmt: skip


@rule(
    "buffer-dtype-fsdp2", "buffer_dtype is read by fsdp only", Severity.NOTE, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:455",
)  # fmt: skip
def buffer_dtype_fsdp2(case: Case) -> Iterator[Found]:
    """fsdp2's MixedPrecisionPolicy has no dtype for buffers."""
    for role in case.engines:
        key = _key(case, role, "buffer_dtype")
        if case.strategy(role) == "fsdp2" and case.config.is_given(key):
            yield Found(key, "fsdp2 does not read it.")


@rule(
    "dead-dtype-key", "fsdp_config.dtype is read by nobody", Severity.WARNING, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.dtype",), "verl 0.9.1 workers/engine/fsdp (no reader)",
)  # fmt: skip
def dead_dtype_key(case: Case) -> Iterator[Found]:
    """Its comment says `mixed precision training param dtype`; the engine reads `mixed_precision.param_dtype`."""
    for role in case.engines:
        key, wanted = case.engine_key(role, "dtype"), _NAMES.get(str(case.engine(role, "dtype")))
        if case.config.is_given(key) and wanted is not None and wanted != _dtype(case, role, "param_dtype"):
            yield Found(key, "the engine does not read it.", (set_key(_key(case, role, "param_dtype"), wanted),))


@rule(
    "cast-forward-inputs", "mixed_precision.cast_forward_inputs is ignored", Severity.NOTE, Stage.SILENT,
    ("actor_rollout_ref.actor.fsdp_config.mixed_precision.cast_forward_inputs",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:391-456",
)  # fmt: skip
def cast_forward_inputs(case: Case) -> Iterator[Found]:
    """fsdp2 always casts, fsdp uses torch's default."""
    for role in case.engines:
        key = _key(case, role, "cast_forward_inputs")
        if case.config.is_given(key):
            yield Found(key, "verl does not read it.")


@rule(
    "fp16-reduce-scaler", "fp16 gradients have a loss scaler", Severity.WARNING, Stage.SILENT, (f"{MODEL}.path",),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:406",
)  # fmt: skip
def fp16_reduce_scaler(case: Case) -> Iterator[Found]:
    """verl adds the scaler for `param_dtype` fp16 only; fp16 master weights with another compute dtype have none."""
    for role in case.trained:
        master = _NAMES.get(str(case.engine(role, "model_dtype")))
        if master == "fp16" and _dtype(case, role, "param_dtype") != "fp16":
            key = case.engine_key(role, "model_dtype")
            yield Found(key, "fp16 weights without a loss scaler: gradients underflow.", (set_key(key, "fp32"),))
