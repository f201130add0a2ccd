"""Times and memory of the training step. Target interpreter."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.benchmark import Timer

from wizard.validation.passes import Batch, full_step, token_loss
from wizard.validation.setup import Context

PEAK_BF16_FLOPS = {
    "A100": 312e12, "A800": 312e12, "H100 PCIe": 756e12, "H100": 989e12, "H800": 989e12, "H200": 989e12,
    "H20": 148e12, "GH200": 989e12, "B200": 2250e12, "B300": 2250e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12,
    "A10G": 70e12, "A10": 125e12, "RTX 4090": 165e12, "RTX 3090": 71e12, "V100": 125e12,
}  # fmt: skip
"""Dense bf16 (V100: fp16) tensor-core peaks from NVIDIA's data sheets, for the model FLOPs utilisation."""


def tell_memory(context: Context, phase: str) -> None:
    """Tell the phase's peak, and start counting anew."""
    if context.device.type == "cuda":
        context.reporter.tell(
            "memory",
            phase=phase,
            peak_allocated_bytes=torch.cuda.max_memory_allocated(),
            peak_reserved_bytes=torch.cuda.max_memory_reserved(),
            allocated_bytes=torch.cuda.memory_allocated(),
        )
        torch.cuda.reset_peak_memory_stats()
    else:
        context.reporter.tell("memory", phase=phase, resident_bytes=resident_bytes())


def resident_bytes() -> int:
    """Return this process's resident set, from /proc; 0 where there is none."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * 4096
    except OSError:
        return 0


def tell_saved_activations(model: nn.Module, batch: Batch, context: Context) -> None:
    """Tell the bytes that autograd keeps of one forward for its backward, weights left out."""
    kept_bytes = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept_bytes
        # FSDP moves the weights while the forward runs, so they are looked up each time.
        weights = {_storage(parameter) for parameter in model.parameters()}
        if _storage(tensor) not in weights:
            kept_bytes += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        token_loss(model, batch, context)
    context.reporter.metric(saved_activation_bytes=kept_bytes)


def _storage(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()


def benchmark(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, context: Context) -> None:
    """Time forward, forward + backward, and the full step, the same number of runs on every rank."""

    def forward() -> None:
        with torch.no_grad():
            token_loss(model, batch, context)

    def forward_backward() -> None:
        token_loss(model, batch, context).backward()
        optimizer.zero_grad()

    step = full_step(model, optimizer, batch, context)
    time_steps(forward, forward_backward, step, batch.whole_tokens, context)


def time_steps(
    forward: Callable[[], None],
    forward_backward: Callable[[], None],
    step: Callable[[], None],
    batch_tokens: int,
    context: Context,
) -> None:
    """Time three functions and tell the rates; `step` runs the spec's micro-batches of `batch_tokens` each."""
    forward_seconds = _seconds(forward, context, "forward_seconds")
    both_seconds = _seconds(forward_backward, context, "forward_backward_seconds")
    step_seconds = _seconds(step, context, "step_seconds")
    sequences = dist.get_world_size() // context.spec.ulysses_size
    tokens = batch_tokens * context.spec.micro_batches * sequences
    parameters = context.parameters
    rate = tokens / step_seconds
    # 6 FLOPs a parameter and token, forward and backward (Kaplan et al. 2020), attention's own left out.
    flops = 6 * parameters * rate / dist.get_world_size()
    peak = _peak_flops(context)
    context.reporter.metric(
        tokens_per_second=rate,
        model_flops_per_second_per_rank=flops,
        backward_seconds=both_seconds - forward_seconds,
        **({"mfu": flops / peak} if peak else {}),
    )


def _peak_flops(context: Context) -> float:
    if context.device.type != "cuda" or context.spec.param_dtype == "fp32":
        return 0.0
    name = torch.cuda.get_device_name(context.device)
    # The longest name that fits: `H100 PCIe` before `H100`, `L40S` before `L4`.
    fitting = [key for key in PEAK_BF16_FLOPS if key in name]
    return PEAK_BF16_FLOPS[max(fitting, key=len)] if fitting else 0.0


def _seconds(function: Callable[[], None], context: Context, name: str) -> float:
    threads = torch.get_num_threads()
    timer = Timer("function()", globals={"function": function}, num_threads=threads)
    timer.timeit(1)
    runs = []
    for _ in range(context.spec.benchmark_runs):
        runs.append(timer.timeit(1).mean)
        context.reporter.metric(**{name: runs[-1]})
    return sorted(runs)[len(runs) // 2]
