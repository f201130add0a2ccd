"""The configurations whose memory is measured: every term of the predictor appears in at least one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Case:
    """One measured configuration. Tokens are those of one micro-batch on one rank."""

    layers: int = 28
    hidden: int = 3584
    heads: int = 28
    kv_heads: int = 4
    head_dim: int = 128
    intermediate: int = 18944
    vocab: int = 152064
    tied: bool = False
    family: str = "qwen2"
    """qwen2, qwen3, llama, gemma3 or qwen3_moe."""
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    world_size: int = 8
    fsdp_size: int = -1
    strategy: str = "fsdp2"
    wrap_classes: tuple[str, ...] = ()
    tokens: int = 4096
    micro_batches: int = 1
    mode: str = "update"
    """update, log_prob or value (a critic's update)."""
    gradient_checkpointing: bool = True
    activation_offload: bool = False
    reshard_after_forward: bool = True
    loss: str = "flash"
    """flash, v2, ce32 or fused."""
    entropy: str = "none"
    """none, eager, compiled or chunked; compiled_chunked is verl's default compile around its chunked entropy."""
    entropy_checkpointing: bool = False
    no_sync: bool = False
    offload_policy: bool = False
    lora_rank: int = 0
    ulysses: int = 1
    liger: bool = False
    temperature: float = 1.0
    packed_mask: bool = False
    """transformers' own sdpa on packed positions, which builds a mask of tokens × tokens."""
    master_dtype: str = "fp32"
    param_dtype: str = "bf16"
    reduce_dtype: str = "fp32"

    @property
    def key(self) -> str:
        """What differs from the default, as a name that stays the same between runs."""
        base = asdict(Case())
        changed = {name: value for name, value in asdict(self).items() if value != base[name]}
        return ",".join(f"{name}={value}" for name, value in changed.items()) or "base"


SMALL = Case(layers=24, hidden=896, heads=14, kv_heads=2, head_dim=64, intermediate=4864, vocab=151936, tied=True)
SMALL = replace(SMALL, tokens=8192)
MIDDLE = Case(layers=28, hidden=1536, heads=12, kv_heads=2, intermediate=8960, vocab=151936, tied=True, tokens=8192)
SHORT = Case(layers=8)
QWEN3 = Case(layers=36, hidden=4096, heads=32, kv_heads=8, intermediate=12288, vocab=151936, family="qwen3")
LLAMA = Case(layers=32, hidden=4096, heads=32, kv_heads=8, intermediate=14336, vocab=128256, family="llama")
MOE = Case(
    layers=6, hidden=2048, heads=32, kv_heads=4, intermediate=6144, vocab=151936, family="qwen3_moe",
    experts=128, experts_per_token=8, expert_intermediate=768,
)  # fmt: skip
GEMMA = Case(
    layers=26, hidden=1152, heads=4, kv_heads=1, head_dim=256, intermediate=6912, vocab=262144, tied=True,
    family="gemma3",
)  # fmt: skip


def cases() -> tuple[Case, ...]:
    """Return all configurations, each once."""
    return tuple(dict.fromkeys(_all()))


def _all() -> Iterator[Case]:
    yield from held_out()
    yield from _fitted()


def held_out() -> Iterator[Case]:
    """Combinations that were first measured after the predictor had been written."""
    yield replace(SHORT, ulysses=4, gradient_checkpointing=False)
    yield replace(QWEN3, ulysses=2, strategy="fsdp", world_size=16)
    yield replace(QWEN3, layers=12, entropy="compiled", tokens=8192)
    yield replace(MOE, layers=12, strategy="fsdp", tokens=8192, micro_batches=2)
    yield replace(MOE, lora_rank=32)
    yield replace(MOE, mode="log_prob", entropy="compiled", tokens=16384)
    yield replace(GEMMA, strategy="fsdp", tokens=8192)
    yield replace(GEMMA, micro_batches=2, no_sync=True)
    yield replace(LLAMA, layers=8, strategy="fsdp", world_size=8, fsdp_size=4, entropy="chunked")
    yield replace(SHORT, entropy="chunked", tokens=16384)
    yield replace(SHORT, entropy="compiled_chunked", tokens=16384)
    yield replace(SHORT, entropy="chunked", entropy_checkpointing=True, tokens=8192)
    yield replace(SHORT, strategy="fsdp", reshard_after_forward=False)
    yield replace(SHORT, strategy="fsdp", activation_offload=True, tokens=16384)
    yield replace(SHORT, offload_policy=True, lora_rank=32)
    yield replace(SHORT, offload_policy=True, micro_batches=3, no_sync=True)
    yield replace(SHORT, loss="v2", entropy="eager", tokens=2048)
    yield replace(MIDDLE, loss="ce32", tokens=4096)
    yield replace(SHORT, loss="v2", mode="log_prob", tokens=2048)
    yield replace(SHORT, temperature=0.7, entropy="compiled")
    yield replace(MIDDLE, world_size=1, micro_batches=2)
    yield replace(SHORT, world_size=3)
    yield replace(SHORT, world_size=6, strategy="fsdp")
    yield replace(SHORT, strategy="fsdp", lora_rank=16, master_dtype="bf16")
    yield replace(SMALL, mode="value")
    yield replace(MIDDLE, mode="value", strategy="fsdp")
    yield replace(SHORT, no_sync=True, micro_batches=3, reduce_dtype="bf16")
    yield replace(SHORT, lora_rank=32, gradient_checkpointing=False)
    yield replace(SHORT, lora_rank=32, tokens=16384)
    yield replace(SHORT, tokens=512)
    yield replace(SMALL, strategy="fsdp", tokens=32768, entropy="compiled")
    yield replace(SHORT, strategy="fsdp", entropy="eager", micro_batches=2)
    yield replace(LLAMA, layers=16, world_size=32, tokens=12288, micro_batches=2)
    yield replace(SHORT, liger=True, strategy="fsdp", tokens=8192)
    yield replace(SMALL, liger=True, gradient_checkpointing=False)


def _fitted() -> Iterator[Case]:
    """Combinations whose allocations were read while the predictor was written."""
    yield Case()
    yield from (replace(SHORT, strategy=strategy) for strategy in ("fsdp2", "fsdp"))
    for strategy in ("fsdp2", "fsdp"):
        short = replace(SHORT, strategy=strategy)
        yield replace(short, entropy="compiled")
        yield replace(short, entropy="chunked", tokens=8192)
        yield replace(short, lora_rank=32)
        yield replace(short, world_size=16, fsdp_size=4)
        yield replace(short, gradient_checkpointing=False)
        yield replace(short, micro_batches=3)
        yield replace(short, micro_batches=3, no_sync=True)
        yield replace(short, mode="log_prob", entropy="compiled", tokens=8192)
        yield replace(short, mode="value")
        yield replace(short, master_dtype="bf16", reduce_dtype="bf16")
        yield replace(SMALL, strategy=strategy)
        yield replace(MOE, strategy=strategy)
    yield replace(SHORT, offload_policy=True)
    yield replace(SHORT, offload_policy=True, micro_batches=2)
    yield replace(SHORT, ulysses=2, world_size=8)
    yield replace(SHORT, ulysses=4, world_size=16, tokens=8192)
    yield replace(SHORT, loss="v2", tokens=2048)
    yield replace(SHORT, loss="ce32")
    yield replace(SHORT, strategy="fsdp", loss="fused", tokens=8192)
    yield replace(SHORT, entropy="eager")
    yield replace(SHORT, entropy="compiled_chunked", tokens=8192)
    yield replace(SHORT, entropy="eager", entropy_checkpointing=True)
    yield replace(SHORT, temperature=0.7)
    yield replace(SHORT, mode="log_prob", entropy="eager")
    yield replace(SHORT, mode="log_prob", entropy="none")
    yield replace(SHORT, mode="log_prob", entropy="chunked", tokens=8192)
    yield replace(SHORT, activation_offload=True, tokens=16384)
    yield replace(SHORT, reshard_after_forward=False)
    yield replace(SHORT, packed_mask=True)
    yield replace(SHORT, packed_mask=True, tokens=16384)
    yield replace(SHORT, liger=True, tokens=16384)
    yield replace(SHORT, master_dtype="bf16")
    yield replace(SHORT, reduce_dtype="bf16")
    yield replace(MOE, tokens=16384)
    yield replace(MOE, gradient_checkpointing=False)
    yield replace(MOE, layers=12, world_size=32, tokens=8192)
    yield replace(QWEN3, world_size=8)
    yield replace(LLAMA, world_size=8, tokens=8192)
    yield GEMMA
    yield replace(GEMMA, tokens=8192, gradient_checkpointing=False)
    yield replace(MIDDLE, micro_batches=2)
    yield replace(MIDDLE, strategy="fsdp", micro_batches=2, no_sync=True)
    yield replace(MIDDLE, gradient_checkpointing=False)
    yield replace(MIDDLE, lora_rank=64)
    yield replace(MIDDLE, world_size=1)
    yield replace(MIDDLE, world_size=2, entropy="eager")
    yield replace(SMALL, world_size=1, strategy="fsdp")
    yield replace(SMALL, tokens=32768)
    yield replace(SMALL, mode="log_prob", entropy="compiled", tokens=32768)
    yield replace(SMALL, no_sync=True, micro_batches=2)
    yield replace(SMALL, offload_policy=True)
    yield replace(LLAMA, lora_rank=32, world_size=2, master_dtype="bf16")
    yield replace(LLAMA, world_size=16, fsdp_size=8, tokens=16384)
    yield Case(tokens=16384, world_size=64)
    yield Case(tokens=8192, gradient_checkpointing=False)
    yield Case(micro_batches=2, no_sync=True)
    yield Case(strategy="fsdp", world_size=8)
    yield Case(strategy="fsdp", lora_rank=32, world_size=4)
    yield Case(layers=48, hidden=5120, heads=40, kv_heads=8, intermediate=13824, tokens=8192)
    yield Case(layers=64, hidden=5120, heads=40, kv_heads=8, intermediate=27648, world_size=32, tokens=8192)
    yield Case(layers=80, hidden=8192, heads=64, kv_heads=8, intermediate=29568, world_size=64, tokens=4096)


def from_dict(values: dict[str, Any]) -> Case:
    """Read a case as JSON holds it."""
    return Case(**{**values, "wrap_classes": tuple(values.get("wrap_classes", ()))})
