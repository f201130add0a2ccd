"""LoRA: which rank trains, which rank is served, and what becomes of the reference model."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.findings import Change, Fix, Severity, Stage
from wizard.rules.case import Case
from wizard.rules.registry import Found, rule, set_key
from wizard.verl.keys import MODEL, ROLLOUT

RANK = f"{MODEL}.lora_rank"
BLOCK_RANK = f"{MODEL}.lora.rank"
ADAPTER = f"{MODEL}.lora_adapter_path"
LIMIT = 512
DEFAULT_RANK = 32


@rule(
    "lora-rank-limit", "the LoRA rank is one that vLLM serves", Severity.ERROR, Stage.DRIVER,
    (RANK, BLOCK_RANK), "verl 0.9.1 utils/config.py:205-215, workers/rollout/vllm_rollout/utils.py:83-103",
)  # fmt: skip
def lora_rank_limit(case: Case) -> Iterator[Found]:
    """vLLM serves ranks up to 512, unless the adapter is merged into the weights first; other ranks are rounded up
    to 1, 8, 16, 32, 64, 128, 256, 320 or 512, for vLLM only."""
    rank = case.rollout_lora_rank
    if case.get(f"{ROLLOUT}.name") == "vllm" and rank > LIMIT and not case.flag(f"{MODEL}.lora.merge"):
        key = BLOCK_RANK if case.number(BLOCK_RANK) > 0 else RANK
        yield Found(key, f"vLLM serves ranks up to {LIMIT}; verl refuses the config.", (set_key(key, LIMIT),))


@rule(
    "lora-block-rank", "FSDP reads lora_rank, not lora.rank", Severity.ERROR, Stage.SILENT, (BLOCK_RANK,),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:162 and 598, trainer/ppo/v1/trainer_base.py:234-237",
)  # fmt: skip
def lora_block_rank(case: Case) -> Iterator[Found]:
    """`model.lora.*` is Megatron's block. With its rank alone the FSDP engine trains all parameters, while trainer and
    rollout believe in an adapter; with a KL term the first step stops, since there is no adapter to switch off."""
    rank = case.number(BLOCK_RANK)
    if rank <= 0 or case.lora_rank or case.strategy("actor") not in ("fsdp", "fsdp2"):
        return
    fix = Fix(f"lora_rank = {rank}", (Change(RANK, rank), Change(BLOCK_RANK, 0)))
    after = ", and the reference's first pass stops" if case.uses_ref else ""
    yield Found(BLOCK_RANK, f"the FSDP engine does not read it and trains all parameters{after}.", (fix,),
                stage=Stage.FIRST_STEP if case.uses_ref else Stage.SILENT)  # fmt: skip


@rule(
    "lora-adapter-rank", "an adapter needs a LoRA rank", Severity.ERROR, Stage.SILENT, (ADAPTER,),
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py:162, 342 and 598",
)  # fmt: skip
def lora_adapter_rank(case: Case) -> Iterator[Found]:
    """The engine loads `lora_adapter_path` only where `lora_rank` is above 0. Without it the adapter is left out and
    all parameters are trained; a KL term then stops the first step."""
    if case.get(ADAPTER) is not None and not case.lora_rank:
        after = ", and the reference's first pass stops" if case.uses_ref else ""
        yield Found(ADAPTER, f"with lora_rank 0 the adapter is not loaded and all parameters are trained{after}.",
                    (set_key(RANK, DEFAULT_RANK),),
                    stage=Stage.FIRST_STEP if case.uses_ref else Stage.SILENT)  # fmt: skip


@rule(
    "lora-load-format", "LoRA with layered summon loads the base model", Severity.ERROR, Stage.FIRST_STEP,
    (f"{ROLLOUT}.load_format",), "verl 0.9.1 utils/fsdp_utils.py:725-730",
)  # fmt: skip
def lora_load_format(case: Case) -> Iterator[Found]:
    """With `layered_summon` only the adapter is sent to the rollout, which then needs real base weights."""
    key = f"{ROLLOUT}.load_format"
    merged = case.flag(f"{MODEL}.lora.merge")
    if case.lora_rank and case.flag(f"{ROLLOUT}.layered_summon") and "dummy" in str(case.get(key)) and not merged:
        text = "the rollout would start from random base weights; verl stops."
        yield Found(key, text, (set_key(key, "safetensors"),))


@rule(
    "lora-target-modules", "LoRA's target modules are names", Severity.ERROR, Stage.WORKERS,
    (f"{MODEL}.target_modules",), "verl 0.9.1 workers/config/model.py:247-258",
)  # fmt: skip
def lora_target_modules(case: Case) -> Iterator[Found]:
    """One text, or a list of texts; anything else stops the workers with a TypeError."""
    key = f"{MODEL}.target_modules"
    value = case.get(key)
    names = value if isinstance(value, list) else [value]
    if value is not None and not all(isinstance(name, str) for name in names):
        yield Found(key, "it must be a text or a list of texts: workers stop.", (set_key(key, "all-linear"),))


@rule(
    "lora-expert-parameters", "LoRA on fused experts was reported to fail", Severity.WARNING, Stage.WORKERS,
    (f"{MODEL}.target_parameters",),
    "huggingface/peft issue 3080; verl 0.9.1 workers/engine/fsdp/transformer_impl.py (_build_lora_module)",
)  # fmt: skip
def lora_expert_parameters(case: Case) -> Iterator[Found]:
    """`target_parameters` puts adapters on experts that are one tensor; peft reshapes them, and shards do not fit."""
    key = f"{MODEL}.target_parameters"
    if case.lora_rank and case.get(key):
        yield Found(key, "adapters on fused expert tensors were reported to stop with a shape error under FSDP.",
                    (set_key(key, None),))  # fmt: skip
