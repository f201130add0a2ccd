"""Time of one mini-batch's update by roofline: an estimate, with what it assumes.

Compute is the sum of matrix products, attention and the traffic of everything else, since eager kernels run one after
another; communication hides behind compute as far as it is shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

from wizard.memory.predict import PLANNED
from wizard.memory.roles import Exact, architecture_of, role_shape, update_step
from wizard.memory.settings import Step
from wizard.memory.shapes import ModelShape
from wizard.plan import Plan

GIGA, TERA = 1e9, 1e12


@dataclass(frozen=True)
class Chip:
    """A GPU's rates by its data sheet: dense bf16 and memory."""

    name: str
    bf16_flops: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    """One direction of NVLink, all links together."""


CHIPS = (
    Chip("B200", 2250 * TERA, 8.0 * TERA, 900 * GIGA),
    Chip("H200", 989 * TERA, 4.8 * TERA, 450 * GIGA),
    Chip("H100", 989 * TERA, 3.35 * TERA, 450 * GIGA),
    Chip("H800", 989 * TERA, 3.35 * TERA, 200 * GIGA),
    Chip("H20", 148 * TERA, 4.0 * TERA, 450 * GIGA),
    Chip("A100", 312 * TERA, 2.0 * TERA, 300 * GIGA),
    Chip("A800", 312 * TERA, 2.0 * TERA, 200 * GIGA),
    Chip("L40S", 362 * TERA, 0.86 * TERA, 32 * GIGA),
    Chip("4090", 165 * TERA, 1.0 * TERA, 32 * GIGA),
)
BY_CAPABILITY = {"10": "B200", "9": "H100", "8": "A100"}

MATRIX_SHARE = 0.8
"""Share of the bf16 peak that large products reach: 788 of 989 TFLOP/s on the H200."""
ATTENTION_SHARE = 0.45
"""Share of the peak that the flash kernel reaches, causal."""
MEMORY_SHARE = 0.9
"""Share of the memory's rate that a copy reaches: 4.3 of 4.8 TB/s on the H200."""
PASSES = 8
"""How often eager forward moves each byte a layer keeps: written, read, and through the temporaries of norms, rotary
embedding and activation between. Read off the H200's forward times at 4 k to 16 k tokens."""
OPTIMIZER_BYTES = 96
"""Bytes per fp32 element that the norm, the clip and foreach AdamW's eight kernels move (torch `optim/adamw.py`)."""
HOST_SECONDS_PER_LAYER = 0.0035
"""Python and FSDP hooks of one layer's forward or backward: below it the GPU waits for the host. Read off the H200's
0.5B rows."""
LINK_SHARE = 0.75
NODE_LINK_BYTES_PER_SECOND = 40 * GIGA
"""One 400 Gb/s adapter a GPU between nodes."""
PCIE_BYTES_PER_SECOND = 25 * GIGA
"""PCIe 4 or 5 ×16, pinned host memory."""
CPU_ADAM_ELEMENTS_PER_SECOND = 3.5e8
"""AdamW on the host, as measured with 16 cores."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one mini-batch's update on every rank, an estimate."""

    seconds: float
    bound_by: str
    parts: dict[str, float]
    """Seconds by part; communication is counted as far as compute does not hide it."""
    assumptions: tuple[str, ...]


def step_time(plan: Plan, exact: Exact = PLANNED) -> StepTime:
    """Return the time of the actor's update of one mini-batch.

    Raises:
        PredictionError: the model has not been inspected.
        NoUnits: verl would stop while it wraps the model.
    """
    step = exact.applied(plan, update_step(plan, "actor"))
    shape = role_shape(plan, "actor", step.tokens)
    chip = chip_of(plan)
    one = compute_seconds(plan, shape, step, chip)
    communication = _communication(plan, shape, step, chip)
    hidden = sum(one.values())
    parts = {name: seconds * step.micro_batches for name, seconds in one.items()}
    parts["communication"] = step.micro_batches * max(0.0, communication - hidden)
    parts["optimizer"] = _optimizer(shape, step, chip)
    parts["offload"] = _offload(plan, shape, step)
    parts = {name: seconds for name, seconds in parts.items() if seconds}
    return StepTime(
        sum(parts.values()), max(parts, key=lambda name: parts[name]), parts, _assumptions(plan, step, chip)
    )


def chip_of(plan: Plan) -> Chip:
    """Return the rates of the Plan's GPU: by name, else by compute capability, else an H100's."""
    machine = plan.machine
    named = next((chip for chip in CHIPS if chip.name in machine.gpu_name.upper()), None)
    if named:
        return named
    family = BY_CAPABILITY.get(machine.compute_capability.split(".")[0], "H100")
    return next(chip for chip in CHIPS if chip.name == family)


def compute_seconds(plan: Plan, shape: ModelShape, step: Step, chip: Chip) -> dict[str, float]:
    """Return forward and backward seconds of one micro-batch, collectives left out."""
    architecture = architecture_of(plan, "actor")
    inactive = architecture.parameters - (architecture.active_parameters or architecture.parameters)
    # An embedding is looked up, not multiplied; a tied head is multiplied all the same.
    products = 2.0 * step.tokens * (shape.parameters - inactive - (0 if shape.tied else shape.embedding_parameters))
    ulysses = plan.actor.ulysses_size
    width = architecture.num_attention_heads * architecture.head_dim
    longest = min(step.tokens * ulysses, plan.data.longest_sequence)
    attention = 2.0 * step.tokens * longest * width * architecture.num_layers
    kept = sum(block.saved_bytes_per_token * block.repeat for block in shape.blocks) * step.tokens
    forward = (
        products / (MATRIX_SHARE * chip.bf16_flops)
        + attention / (ATTENTION_SHARE * chip.bf16_flops)
        + PASSES * kept / (MEMORY_SHARE * chip.memory_bytes_per_second)
    )
    host = HOST_SECONDS_PER_LAYER * sum(block.repeat for block in shape.blocks)
    forward = max(forward, host)
    # Each product has two in backward, a flash kernel's backward has five for two.
    frozen = 1.0 if plan.model.lora_rank else 2.0
    backward = max(
        frozen * products / (MATRIX_SHARE * chip.bf16_flops)
        + 2.5 * attention / (ATTENTION_SHARE * chip.bf16_flops)
        + 2 * PASSES * kept / (MEMORY_SHARE * chip.memory_bytes_per_second),
        host,
    )
    return {
        "forward": forward,
        "recomputation": forward if step.gradient_checkpointing else 0.0,
        "backward": backward,
    }


def _communication(plan: Plan, shape: ModelShape, step: Step, chip: Chip) -> float:
    """Gathers in forward and backward, reduce-scatter in fp32, by a ring over the shard group."""
    if step.ranks == 1:
        return 0.0
    machine = plan.machine
    links = chip.link_bytes_per_second * LINK_SHARE if machine.interconnect == "nvlink" else PCIE_BYTES_PER_SECOND
    if step.ranks > max(1, machine.gpus_per_node):
        links = NODE_LINK_BYTES_PER_SECOND
    gathers = 2 if step.reshard_after_forward else 1
    reduced = step.reduce_bytes * shape.trainable / (step.micro_batches if step.no_sync else 1)
    moved = gathers * step.compute_bytes * shape.parameters + reduced
    if step.ranks < plan.world_size:
        moved += 2 * step.reduce_bytes * shape.trainable / step.ranks
    return moved * (step.ranks - 1) / step.ranks / links


def _optimizer(shape: ModelShape, step: Step, chip: Chip) -> float:
    elements = shape.trainable / step.ranks
    if step.offload_policy:
        return elements / CPU_ADAM_ELEMENTS_PER_SECOND
    moved = OPTIMIZER_BYTES * step.master_bytes / 4 * elements
    return moved / (MEMORY_SHARE * chip.memory_bytes_per_second)


def _offload(plan: Plan, shape: ModelShape, step: Step) -> float:
    """Once there and back an update for the flags, once each way a micro-batch for the policy."""
    shard, trained = shape.parameters / step.ranks, shape.trainable / step.ranks
    if step.offload_policy:
        moved = step.micro_batches * (2 * step.master_bytes * shard + step.master_bytes * trained)
    else:
        moved = 2.0 * step.master_bytes * shard if plan.actor.param_offload else 0.0
        moved += 4.0 * step.master_bytes * trained if plan.actor.optimizer_offload else 0.0
    return moved / PCIE_BYTES_PER_SECOND


def _assumptions(plan: Plan, step: Step, chip: Chip) -> tuple[str, ...]:
    inside = f"{chip.link_bytes_per_second * LINK_SHARE / GIGA:.0f} GB/s NVLink"
    if plan.machine.interconnect != "nvlink":
        inside = f"{PCIE_BYTES_PER_SECOND / GIGA:.0f} GB/s PCIe"
    link = f"{NODE_LINK_BYTES_PER_SECOND / GIGA:.0f} GB/s between nodes" if (
        step.ranks > max(1, plan.machine.gpus_per_node)
    ) else inside  # fmt: skip
    return (
        f"{chip.name}: {MATRIX_SHARE:.0%} of {chip.bf16_flops / TERA:.0f} TFLOP/s bf16 in products, "
        f"{chip.memory_bytes_per_second / TERA:.2g} TB/s memory",
        f"{step.micro_batches} micro-batches of {step.tokens} tokens a GPU, every sample at its longest",
        f"{link} for collectives, hidden behind compute as far as they are shorter",
        "eager kernels, no torch.compile",
    )
