"""One rank of a validation run: `python _target_entry.py wizard.validation.worker SPEC FOLDER` under torchrun."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from wizard.validation.agent import die_with_parent
from wizard.validation.reporter import Reporter
from wizard.validation.spec import ValidationSpec, read_spec
from wizard.validation.stacks import stack_file
from wizard.validation.tolerance import LOSS_TOLERANCE

PARITY_MEMORY_SHARE = 0.4
"""The unsharded model is run only where it takes less than this share of the free memory."""


class ParityError(ValueError):
    """Sharding changed the result."""


def main(argv: list[str]) -> int:
    """Run all steps of the spec; 0 only when every one passed."""
    die_with_parent(os.getppid())
    faulthandler.enable()
    folder, rank = Path(argv[1]), int(os.environ["RANK"])
    reporter = Reporter(folder, rank)
    with suppress(AttributeError, ValueError, OSError):
        # The wizard asks a hung rank for its stacks. The file stays open for as long as the process lives.
        stacks = stack_file(folder, rank).open("w")
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    spec = read_spec(Path(argv[0]))
    try:
        _run(spec, reporter)
    except Exception:
        # The failure event is written; the log gets the whole traceback for people.
        traceback.print_exc()
        sys.stderr.flush()
        # A process group that others still wait in cannot be torn down in order.
        os._exit(1)
    reporter.step = ""
    reporter.tell("finished")
    return 0


def _run(spec: ValidationSpec, reporter: Reporter) -> None:
    with reporter.running("environment"):
        from wizard.validation.setup import start

        if reporter.rank == 0:
            for note in spec.notes:
                reporter.log(note)
        context = start(spec, reporter)
    import torch
    import torch.distributed as dist

    from wizard.validation import passes
    from wizard.validation.load import load
    from wizard.validation.measure import benchmark, tell_memory, tell_saved_activations
    from wizard.validation.offload import round_trip
    from wizard.validation.wrap import wrap

    with reporter.running("load"):
        model = load(context)
        context.parameters = sum(parameter.numel() for parameter in model.parameters())
        vocab_size = int(model.config.get_text_config().vocab_size)
        reference = _reference_loss(model, context, vocab_size) if "parity" in spec.steps else None
        tell_memory(context, "load")
    with reporter.running("wrap"):
        model = wrap(model, context)
        optimizer = passes.make_optimizer(model, context)
        tell_memory(context, "wrap")
    batches = passes.make_batches(context, vocab_size)
    with reporter.running("forward"):
        if spec.data_shards:
            tell_saved_activations(model, batches[0], context)
        loss, sharded = passes.forward(model, batches, context)
        tell_memory(context, "forward")
    with reporter.running("backward"):
        passes.backward(model, loss, batches, context)
        del loss
        tell_memory(context, "backward")
    with reporter.running("optimizer"):
        passes.optimizer_step(model, optimizer, context)
        tell_memory(context, "optimizer")
    if "benchmark" in spec.steps:
        with reporter.running("benchmark"):
            benchmark(model, optimizer, batches[0], context)
            tell_memory(context, "actor_update")
    if "offload" in spec.steps:
        with reporter.running("offload"):
            round_trip(model, optimizer, context)
            tell_memory(context, "offload")
    if "parity" in spec.steps:
        with reporter.running("parity"):
            _prove_parity(reference, sharded, context)
    dist.barrier()
    dist.destroy_process_group()
    del model, torch


def _reference_loss(model, context, vocab_size: int) -> float | None:  # type: ignore[no-untyped-def]
    """Loss of the whole model on rank 0, None where it would not fit or there are no weights yet."""
    import torch

    from wizard.validation.passes import unsharded_loss

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


def _prove_parity(reference: float | None, sharded: float, context) -> None:  # type: ignore[no-untyped-def]
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
