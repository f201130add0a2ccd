"""What is allocated on one GPU, by cause, while a step is replayed."""

from __future__ import annotations

from dataclasses import dataclass

CAUSES = (
    *("parameters", "optimizer", "gradients", "unsharded", "activations", "logits"),
    *("rollout_weights", "kv_cache", "workspace"),
)
"""Causes in the order a stacked bar draws them. `unsharded` holds gathered FSDP units and collective buffers."""


@dataclass(frozen=True)
class Peak:
    """The most bytes that were allocated at once, where the replay was then, and what held them."""

    total_bytes: int
    at: str
    breakdown: dict[str, int]


STREAMS = ("compute", "gather", "reduce")
"""CUDA streams that tensors are allocated on: FSDP's flat buffers and sharded gradients have streams of their own."""


class Ledger:
    """Running bytes by cause; remembers the peak of each stage.

    Sizes may be fractional while they are sharded; peaks are whole bytes.
    """

    def __init__(self) -> None:
        self.held: dict[str, float] = dict.fromkeys(CAUSES, 0.0)
        self.total = 0.0
        self.peaks: dict[str, Peak] = {}
        self.highest_by_stream: dict[str, float] = dict.fromkeys(STREAMS, 0.0)
        """Most bytes that tensors of each CUDA stream held at once, over all stages."""
        self._by_stream: dict[str, float] = dict.fromkeys(STREAMS, 0.0)
        self._stage = ""
        self._highest = -1.0

    def stage(self, name: str) -> None:
        """Begin (or return to) a stage; what is held now counts towards its peak."""
        self._stage = name
        self._highest = float(self.peaks[name].total_bytes) if name in self.peaks else -1.0
        self.touch(f"start of {name}")

    def hold(self, cause: str, size_bytes: float, at: str = "", *, stream: str = "compute") -> None:
        """Allocate; with `at`, the state right after it is a candidate for the peak."""
        self.held[cause] += size_bytes
        self.total += size_bytes
        self._by_stream[stream] += size_bytes
        self._raise(stream, 0.0)
        if at:
            self.touch(at)

    def drop(self, cause: str, size_bytes: float, *, stream: str = "compute") -> None:
        """Free."""
        self.held[cause] -= size_bytes
        self.total -= size_bytes
        self._by_stream[stream] -= size_bytes

    def _raise(self, stream: str, momentary_bytes: float) -> None:
        highest = self._by_stream[stream] + momentary_bytes
        if highest > self.highest_by_stream[stream]:
            self.highest_by_stream[stream] = highest

    def touch(self, at: str, stream: str = "compute", **momentary_bytes: float) -> None:
        """Consider the present state, with `momentary_bytes` by cause on top, as the peak."""
        momentary = sum(momentary_bytes.values())
        self._raise(stream, momentary)
        total = self.total + momentary
        if total <= self._highest:
            return
        self._highest = total
        breakdown = {cause: round(self.held[cause] + momentary_bytes.get(cause, 0.0)) for cause in CAUSES}
        self.peaks[self._stage] = Peak(round(total), at, {cause: size for cause, size in breakdown.items() if size})

    @property
    def peak(self) -> Peak:
        """The highest peak over all stages."""
        return max(self.peaks.values(), key=lambda peak: peak.total_bytes)
