"""Whether sharding changed the result: the loss against the unsharded model's. Target interpreter."""

from __future__ import annotations

import os

import torch
from torch import nn

from wizard.validation.passes import unsharded_loss
from wizard.validation.setup import Context
from wizard.validation.tolerance import LOSS_TOLERANCE

PARITY_MEMORY_SHARE = 0.4
"""The unsharded model is run only where it takes less than this share of the free memory."""


class ParityError(ValueError):
    """Sharding changed the result."""


def reference_loss(model: nn.Module, context: Context, vocab_size: int) -> float | None:
    """Loss of the whole model on rank 0, None where it would not fit or there are no weights yet."""
    if context.rank != 0:
        return None
    size_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if context.device.type == "cuda":
        free_bytes = torch.cuda.mem_get_info()[0]
    else:
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size_bytes > PARITY_MEMORY_SHARE * free_bytes:
        context.reporter.log("the unsharded model is too large to run here, so the losses are not compared")
        return None
    home = next(model.parameters()).device
    loss = unsharded_loss(model.to(context.device), context, vocab_size)
    model.to(home)
    context.reporter.metric(unsharded_loss=loss)
    return loss


def prove_parity(reference: float | None, sharded: float, context: Context) -> None:
    """Compare the two losses where both are there.

    Raises:
        ParityError: they differ by more than the compute dtype explains.
    """
    if reference is None:
        return
    tolerance = LOSS_TOLERANCE[context.spec.param_dtype]
    difference = abs(sharded - reference) / max(abs(reference), 1e-12)
    context.reporter.metric(parity_relative_difference=difference, parity_tolerance=tolerance)
    if not difference <= tolerance:
        raise ParityError(
            f"the sharded loss {sharded:.6g} differs from the unsharded model's {reference:.6g} by {difference:.2%}, "
            f"more than {context.spec.param_dtype} explains ({tolerance:.2%})"
        )
