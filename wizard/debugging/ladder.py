"""The rungs of the debugging ladder: runs that add one thing at a time, from one device to the Plan. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from wizard.validation.spec import ValidationSpec

CHECKS, ONE_DEVICE, DDP, FSDP, PRECISION, OFFLOAD, ULYSSES, PLANNED = (
    "checks",
    "one device",
    "DDP",
    "FSDP",
    "precision",
    "offload",
    "Ulysses",
    "as planned",
)
ABOUT = {
    CHECKS: "what verl itself refuses",
    ONE_DEVICE: "the model alone, in fp32",
    DDP: "a whole model on every rank",
    FSDP: "sharded and wrapped as planned, still in fp32",
    PRECISION: "with the Plan's dtypes and attention",
    OFFLOAD: "with the Plan's offload",
    ULYSSES: "with sequences shared by ranks",
    PLANNED: "the Plan's own micro-batch, timed",
}
COMPARED_TOKENS = 2048
"""Micro-batch of the runs that are compared: their numbers have to agree, which needs no full memory."""
TRAINED_BYTES = 16
"""Of one parameter in fp32: weight, gradient and the two moments of Adam."""


@dataclass(frozen=True)
class Rung:
    """One run of the ladder, or the reason why it is left out."""

    name: str
    spec: ValidationSpec | None
    skipped: str = ""

    @property
    def optional(self) -> bool:
        """Whether the run takes more memory than the Plan does, so that lack of memory says nothing about the Plan."""
        return self.name in (ONE_DEVICE, DDP, FSDP)


def ladder(planned: ValidationSpec, *, parameters: int = 0, memory_bytes: int = 0) -> tuple[Rung, ...]:
    """Return the rungs below a planned run, and that run itself as the last one.

    All but the last see the same data, so that loss and gradients can be compared. What a rung leaves out is set to
    its neutral value: a change of the Plan that a rung does not use leaves its spec as it was.

    Args:
        parameters: of the whole model, 0 when not known.
        memory_bytes: of one device, 0 when not known.
    """
    whole_bytes = parameters * TRAINED_BYTES
    too_big = ""
    if memory_bytes and whole_bytes > memory_bytes:
        too_big = (
            f"{whole_bytes / 2**30:.0f} GiB of unsharded fp32 weights, gradients and Adam states do not fit "
            f"{memory_bytes / 2**30:.0f} GiB"
        )
    return tuple(_rungs(planned, too_big))


def _rungs(planned: ValidationSpec, too_big: str) -> Iterator[Rung]:
    full = _compared(planned)
    unshared = dataclasses.replace(full, ulysses_size=1)
    resident = dataclasses.replace(unshared, param_offload=False, optimizer_offload=False, offload_policy=False)
    sharded = dataclasses.replace(
        resident,
        param_dtype="fp32",
        reduce_dtype="fp32",
        master_dtype="fp32",
        buffer_dtype="fp32",
        # Flash kernels take no fp32.
        attention="sdpa" if full.attention.startswith("flash") else full.attention,
    )
    alone = full.world_size == 1
    yield _rung(ONE_DEVICE, dataclasses.replace(_whole(sharded), world_size=1, strategy="none"), too_big)
    one_rank = "there is one rank" if alone else ""
    yield _rung(DDP, dataclasses.replace(_whole(sharded), strategy="ddp"), one_rank or too_big)
    yield Rung(FSDP, sharded)
    yield _rung(PRECISION, resident, "" if resident != sharded else "the Plan computes in fp32")
    yield _rung(OFFLOAD, unshared, "" if unshared != resident else "the Plan offloads nothing")
    yield _rung(ULYSSES, full, "" if full != unshared else "ulysses_size is 1")
    yield Rung(PLANNED, planned)


def _rung(name: str, spec: ValidationSpec, skipped: str) -> Rung:
    return Rung(name, None if skipped else spec, skipped)


def _compared(planned: ValidationSpec) -> ValidationSpec:
    share = planned.ulysses_size
    budget = min(COMPARED_TOKENS, max(1, planned.tokens // share))
    # A length that every sequence parallel size divides, so that no rung pads what another does not.
    tokens = -(-budget // share) * share
    return dataclasses.replace(
        planned,
        # verl's engine knows neither one device nor DDP; the last rung runs what was chosen.
        engine="torch",
        verl_overrides={},
        tokens=tokens,
        sequence_tokens=min(planned.sequence_tokens, tokens),
        data_shards=planned.world_size,
        micro_batches=1,
        benchmark_runs=0,
        notes=(),
    )


def _whole(sharded: ValidationSpec) -> ValidationSpec:
    """Return the spec without what only a sharded model has."""
    return dataclasses.replace(
        sharded,
        wrap_classes=(),
        min_num_params=0,
        expected_units=0,
        fsdp_size=-1,
        reshard_after_forward=True,
        forward_prefetch=False,
        use_orig_params=False,
    )
