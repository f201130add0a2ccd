"""How one step runs, as the replay needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LossPath = Literal["flash", "v2", "ce32", "fused", "value"]
"""How log-probabilities come from logits: flash-attn's Triton cross entropy, verl's row loop without flash-attn
(`logprobs_from_logits_v2`), a plain fp32 cross entropy, fused kernels that never
hold the logits, or a critic's value loss."""
EntropyPath = Literal["none", "eager", "compiled", "chunked", "compiled_chunked"]

CUBLAS_WORKSPACE_BYTES = 32 * 2**20
"""torch 2.11 `aten/src/ATen/cuda/CUDABlas.cpp` (getChosenWorkspaceSize): 32 MiB on Hopper, per handle and stream;
the forward thread and autograd's thread have one handle each."""

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Step:
    """One optimizer update of one rank. Sizes in bytes per element; tokens of ONE micro-batch on this rank."""

    tokens: int
    ranks: int = 1
    """Ranks one copy of the parameters is sharded over (fsdp_size, else the world size)."""
    strategy: Literal["fsdp", "fsdp2"] = "fsdp2"
    micro_batches: int = 1
    gradient_checkpointing: bool = True
    activation_offload: bool = False
    reshard_after_forward: bool = True
    master_bytes: int = 4
    compute_bytes: int = 2
    reduce_bytes: int = 4
    loss: LossPath = "flash"
    entropy: EntropyPath = "none"
    entropy_checkpointing: bool = False
    no_sync: bool = False
    offload_policy: bool = False
    scaled_logits: bool = False
    """Temperature other than 1: verl divides the logits into a new tensor."""
    loss_chunk_rows: int = 0
    """Rows a Python imitation of flash-attn's kernel handles at once; 0 is the kernel itself, without temporaries."""
    mask_bytes: int = 0
    """Bytes of a boolean attention mask that all layers share."""
    log_prob_optimizer_resident: bool = True
