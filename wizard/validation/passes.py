"""Forward, backward and optimizer of one training step, with their checks. Target interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from wizard.validation.finite import FirstNonFinite
from wizard.validation.setup import DTYPES, Context
from wizard.validation.ulysses import SegmentMask

MAX_GRADIENT_NORM = 1.0
"""verl's `actor.grad_clip`."""


class NonFiniteError(ValueError):
    """A loss, logit or gradient that is NaN or infinite."""


class GradientError(ValueError):
    """Trainable parameters that got no gradient."""


@dataclass(frozen=True)
class Batch:
    """One packed micro-batch, this rank's slice of it. Shapes: (1, tokens of the slice)."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    targets: torch.Tensor
    """The token after each one; −100 at the end of a sequence."""
    whole_tokens: int
    """Tokens of the whole packed batch."""


def make_batches(context: Context, vocab_size: int) -> list[Batch]:
    """Return this rank's micro-batches: its part of `data_shards` different ones, or the one that all ranks get."""
    return [make_batch(context, vocab_size, number) for number in batch_numbers(context)]


def batch_numbers(context: Context) -> Sequence[int]:
    """Return the numbers of this rank's micro-batches."""
    shards, ranks = context.spec.data_shards, context.data_ranks
    return range(context.rank // context.spec.ulysses_size, shards, ranks) if shards else (0,)


def make_batch(context: Context, vocab_size: int, number: int = 0, *, whole: bool = False) -> Batch:
    """Return random tokens, for one number the same on every rank of every world size: losses can be compared.

    `whole` returns the whole sequence also where ranks share one.
    """
    spec = context.spec
    generator = torch.Generator().manual_seed(spec.seed + 1 + number)
    share = spec.ulysses_size
    tokens = -(-spec.tokens // share) * share
    lengths = [spec.sequence_tokens] * (tokens // spec.sequence_tokens)
    if tokens % spec.sequence_tokens:
        lengths.append(tokens % spec.sequence_tokens)
    input_ids = torch.randint(vocab_size, (1, tokens), generator=generator)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    targets = input_ids.roll(-1, dims=1)
    targets[0, torch.tensor(lengths).cumsum(0) - 1] = -100
    SegmentMask.lengths = tuple(lengths)
    parts = [input_ids, positions, targets]
    if context.sequence_group is not None and not whole:
        mine = dist.get_rank(context.sequence_group)
        parts = [part.chunk(share, dim=1)[mine] for part in parts]
    ids, positions, targets = (part.contiguous().to(context.device) for part in parts)
    return Batch(ids, positions, targets, tokens)


def token_loss(model: nn.Module, batch: Batch, context: Context, *, check: bool = False) -> torch.Tensor:
    """Return this rank's share of the mean next-token loss, under autocast as verl runs it.

    FSDP averages gradients over all ranks, so that with Ulysses each rank's share counts `ulysses_size` times.

    Raises:
        NonFiniteError: with `check`, a logit or the loss is not finite.
    """
    spec = context.spec
    autocast = torch.autocast(context.device.type, dtype=DTYPES[spec.param_dtype], enabled=spec.param_dtype != "fp32")
    with autocast:
        output = model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
    logits = output.logits
    if check and not bool(torch.isfinite(logits).all()):
        raise NonFiniteError("logits hold NaN or infinity")
    shares = spec.ulysses_size if batch.input_ids.shape[1] != batch.whole_tokens else 1
    loss = nn.functional.cross_entropy(logits[0].float(), batch.targets[0], ignore_index=-100, reduction="sum")
    return loss * shares / batch.whole_tokens


def reported_loss(loss: torch.Tensor) -> float:
    """Return the loss averaged over all ranks."""
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def unsharded_loss(model: nn.Module, context: Context, vocab_size: int) -> float:
    """Return the loss of the model before it is sharded; NaN where there is a non-finite value."""
    spec = context.spec
    batch = make_batch(context, vocab_size, whole=True)
    if spec.ulysses_size > 1:
        # Without the group, the same attention over whole sequences.
        model.set_attn_implementation(spec.attention)  # type: ignore[operator]
    try:
        with torch.no_grad():
            return float(token_loss(model, batch, context))
    finally:
        if spec.ulysses_size > 1:
            from wizard.validation.ulysses import ATTENTION_NAME

            model.set_attn_implementation(ATTENTION_NAME)  # type: ignore[operator]


def forward(model: nn.Module, batches: list[Batch], context: Context) -> tuple[torch.Tensor, float]:
    """Run a forward, naming the first module whose result is not finite.

    Returns the first micro-batch's loss with its graph, and the mean loss over all micro-batches of all ranks.

    Raises:
        NonFiniteError: with that module's name, and the weight at fault where one is.
    """
    context.watch = FirstNonFinite(model)
    with context.watch as watch:
        try:
            with torch.no_grad():
                others = [token_loss(model, batch, context, check=True) for batch in batches[1:]]
            loss = token_loss(model, batches[0], context, check=True)
        except NonFiniteError as error:
            raise NonFiniteError(watch.sentence() or str(error)) from error
    if not bool(torch.isfinite(loss)):
        raise NonFiniteError(watch.sentence() or "the loss is not finite although the logits are")
    value = reported_loss(torch.stack([loss.detach(), *others]).mean())
    context.reporter.metric(loss=value, tokens=batches[0].whole_tokens)
    return loss, value


def backward(model: nn.Module, loss: torch.Tensor, batches: list[Batch], context: Context) -> None:
    """Run the backward of all micro-batches and prove that every trainable parameter has a finite gradient.

    Raises:
        GradientError: parameters without a gradient.
        NonFiniteError: a gradient that is not finite.
    """
    (loss / len(batches)).backward()
    for batch in batches[1:]:
        (token_loss(model, batch, context) / len(batches)).backward()
    prove_gradients(model, context)


def prove_gradients(model: nn.Module, context: Context) -> None:
    """Prove that every trainable parameter has a finite gradient, after a backward that `context.watch` saw.

    Raises:
        GradientError: parameters without a gradient.
        NonFiniteError: a gradient that is not finite.
    """
    without, infinite = [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or not _local(parameter).numel():
            continue
        if parameter.grad is None:
            without.append(name)
        elif not bool(torch.isfinite(_local(parameter.grad)).all()):
            infinite.append(name)
    _prove_watched(context)
    if without:
        raise GradientError(f"no gradient reached {without[0]} and {len(without) - 1} more trainable parameters")
    if infinite:
        raise NonFiniteError(f"first non-finite gradient in {infinite[0]}, and {len(infinite) - 1} more")


def _prove_watched(context: Context) -> None:
    """Name the module and the rank where gradients stop or stop being finite; every rank learns what any found."""
    cut_off = context.watch.cut_off()
    if cut_off:
        raise GradientError(f"no gradient reached {cut_off}: its result is detached from the loss, or not used")
    sentences: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(sentences, context.watch.gradient_sentence())
    for rank, sentence in enumerate(sentences):
        if sentence:
            raise NonFiniteError(f"{sentence} on rank {rank}")


def optimizer_step(model: nn.Module, optimizer: torch.optim.Optimizer, context: Context) -> None:
    """Clip and step as verl does, and prove that the norm is finite.

    Raises:
        NonFiniteError: the gradient norm is not finite.
    """
    norm = clipped_norm(model, context)
    if not norm < float("inf"):
        raise NonFiniteError(f"grad_norm is not finite: {norm}")
    optimizer.step()
    optimizer.zero_grad()
    context.reporter.metric(gradient_norm=norm)


def clipped_norm(model: nn.Module, context: Context) -> float:
    """Clip all gradients to `MAX_GRADIENT_NORM` and return the norm before it."""
    if context.spec.strategy == "fsdp":
        return float(model.clip_grad_norm_(MAX_GRADIENT_NORM))  # type: ignore[operator]
    norm: Any = nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def make_optimizer(model: nn.Module, context: Context) -> torch.optim.Optimizer:
    """Return AdamW as verl's default makes it (0.9.1 `workers/config/optimizer.py`)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=context.spec.learning_rate, betas=(0.9, 0.999), weight_decay=0.01)


def full_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, context: Context) -> Callable[[], None]:
    """Return one whole training step as a function to be timed."""

    def step() -> None:
        for _ in range(context.spec.micro_batches):
            (token_loss(model, batch, context) / context.spec.micro_batches).backward()
        clipped_norm(model, context)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
