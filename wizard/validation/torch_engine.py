"""The steps with torch's own FSDP, as verl's engine uses it. Target interpreter."""

from __future__ import annotations

from wizard.validation import passes
from wizard.validation.load import load
from wizard.validation.measure import benchmark, tell_memory, tell_saved_activations
from wizard.validation.offload import round_trip
from wizard.validation.parity import prove_parity, reference_loss
from wizard.validation.setup import Context
from wizard.validation.wrap import wrap


def run_steps(context: Context) -> None:
    """Run all steps after `environment`."""
    spec, reporter = context.spec, context.reporter
    with reporter.running("load"):
        model = load(context)
        context.parameters = sum(parameter.numel() for parameter in model.parameters())
        vocab_size = int(model.config.get_text_config().vocab_size)
        reference = reference_loss(model, context, vocab_size) if "parity" in spec.steps else None
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
            prove_parity(reference, sharded, context)
