"""Runs that passed and are wrong all the same: what sharding, precision, offload or Ulysses silently changed."""

from __future__ import annotations

import re

from wizard.diagnosis.causes.numerics import wider_dtypes
from wizard.diagnosis.evidence import Cause, set_fields
from wizard.findings import Fix
from wizard.plan import Plan

_DIFFERS = r"ladder: (?P<name>loss|gradient_norm) (?P<value>\S+) instead of (?P<wanted>[^\s,]+), (?P<apart>\S+) apart.*"
_SOURCE = "verl-wizard's ladder"


def _no_ulysses(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    return (set_fields("whole sequences on every rank", actor__ulysses_size=1),) if plan.actor.ulysses_size > 1 else ()


def _no_offload(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    actor = plan.actor
    if not (actor.param_offload or actor.optimizer_offload or actor.offload_policy):
        return ()
    off = {"actor__param_offload": False, "actor__optimizer_offload": False, "actor__offload_policy": False}
    return (set_fields("no offload", **off),)


def _other_strategy(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    other = "fsdp" if plan.actor.strategy == "fsdp2" else "fsdp2"
    fixes: tuple[Fix, ...] = (set_fields(f"{other} instead of {plan.actor.strategy}", actor__strategy=other),)
    if plan.actor.fsdp_size != -1:
        fixes = (set_fields("one shard group over all ranks", actor__fsdp_size=-1), *fixes)
    return fixes


CAUSES = (
    Cause(
        "head-untied",
        "sharding untied the head from the embedding",
        re.compile(r"ladder: the head is untied: (?P<held>[\d,]+) sharded elements of (?P<whole>[\d,]+)"),
        "The model has {whole} parameters, and {held} elements are trained: the tied weight exists twice now, each "
        "copy learning for itself.",
        "Shard embedding and head in one FSDP unit, as verl does for a model whose config says tie_word_embeddings; "
        "the model's code has to tie them by one Parameter.",
        fixes=_other_strategy,
        source=_SOURCE,
    ),
    Cause(
        "parameters-changed",
        "the rung trains another number of parameters",
        re.compile(r"ladder: the model has (?P<value>[\d,]+) parameters instead of (?P<wanted>[\d,]+)"),
        "{value} parameters are built here, {wanted} on the rung before, from the same configuration.",
        "Look in the model's code for modules that depend on the world size, the dtype or the attention.",
        source=_SOURCE,
    ),
    Cause(
        "ulysses-no-effect",
        "Ulysses shares nothing",
        re.compile(
            r"ladder: activations are not shared: (?P<value>[\d,]+) bytes kept for the backward with ulysses_size "
            r"(?P<size>\d+), (?P<wanted>[\d,]+) without"
        ),
        "A rank keeps {value} bytes for the backward with ulysses_size {size}, and {wanted} without: its ranks hold "
        "the whole sequence each, so the size costs communication and saves nothing.",
        "The model's forward does not take its sequence from the inputs it is given; train it without Ulysses.",
        rule="ulysses-attention",
        fixes=_no_ulysses,
        source=_SOURCE,
    ),
    Cause(
        "ulysses-changes-result",
        "Ulysses changes the result",
        re.compile(_DIFFERS + "rung Ulysses"),
        "With sequences shared by ranks, {name} is {value}; it was {wanted} without ({apart} apart). Attention sees "
        "only a rank's own part of the sequence.",
        "The model's attention does not go through transformers' attention functions, where Ulysses works; verl "
        "patches flash attention only. Train it without Ulysses.",
        rule="ulysses-attention",
        fixes=_no_ulysses,
        source=_SOURCE,
    ),
    Cause(
        "precision-changes-result",
        "the chosen precision changes the result",
        re.compile(_DIFFERS + "rung precision"),
        "In the Plan's dtypes, {name} is {value}; in fp32 it was {wanted} ({apart} apart).",
        "Compute in bf16 and keep master weights and gradient reduction in fp32. If it stays, a module of the model "
        "needs fp32 (a router, a norm, a long sum), or the attention kernel is at fault.",
        rule="reduce-dtype",
        fixes=wider_dtypes,
        source=_SOURCE,
    ),
    Cause(
        "offload-changes-result",
        "offload changes the result",
        re.compile(_DIFFERS + "rung offload"),
        "With offload, {name} is {value}; it was {wanted} without ({apart} apart).",
        "Offload only moves tensors: look in the model's code for buffers or weights that it keeps elsewhere.",
        fixes=_no_offload,
        source=_SOURCE,
    ),
    Cause(
        "gradients-not-synchronised",
        "gradients are not synchronised between ranks",
        re.compile(_DIFFERS.replace("loss|gradient_norm", "gradient_norm") + "rung (?P<rung>DDP|FSDP)"),
        "The loss agrees with the rung before, and the gradient norm is {value} instead of {wanted} ({apart} apart): "
        "ranks step with gradients of their own data, and their models drift apart.",
        "Look for weights used outside the module that owns them, for a module's forward called directly, and for "
        "no_sync around the last micro-batch.",
        fixes=_other_strategy,
        source=_SOURCE,
    ),
    Cause(
        "sharding-changes-result",
        "spreading the model over ranks changes the result",
        re.compile(_DIFFERS + r"rung (?P<rung>DDP|FSDP)"),
        "On the rung {rung}, {name} is {value}; it was {wanted} before ({apart} apart), for the same data.",
        "The model's result depends on the rank or on the batch: look for random numbers (dropout), statistics over "
        "the batch, or weights that are not the same on every rank.",
        fixes=_other_strategy,
        source=_SOURCE,
    ),
    Cause(
        "parity",
        "the sharded model computes something else",
        re.compile(
            r"the sharded loss (?P<value>\S+) differs from the unsharded model's (?P<wanted>\S+) by (?P<apart>[\d.]+%)"
        ),
        "The same weights and tokens give a loss of {wanted} before sharding and {value} after it ({apart} apart).",
        "Climb the ladder (verl-wizard debug): it tells which of sharding, precision, offload and Ulysses does it.",
        fixes=wider_dtypes,
        source="verl-wizard's validation",
    ),
)
