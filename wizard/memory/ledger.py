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


class Ledger:
    """Running bytes by cause; remembers the peak of each stage.

    Sizes may be fractional while they are sharded; peaks are whole bytes.
    """

    def __init__(self) -> None:
        self.held: dict[str, float] = dict.fromkeys(CAUSES, 0.0)
        self.total = 0.0
        self.peaks: dict[str, Peak] = {}
        self.highest_unsharded = 0.0
        """Most bytes `unsharded` held at once, over all stages."""
        self.highest_rest = 0.0
        """Most bytes everything else held at once."""
        self._stage = ""
        self._highest = -1.0

    def stage(self, name: str) -> None:
        """Begin (or return to) a stage; what is held now counts towards its peak."""
        self._stage = name
        self._highest = float(self.peaks[name].total_bytes) if name in self.peaks else -1.0
        self.touch(f"start of {name}")

    def hold(self, cause: str, size_bytes: float, at: str = "") -> None:
        """Allocate; with `at`, the state right after it is a candidate for the peak."""
        self.held[cause] += size_bytes
        self.total += size_bytes
        if at:
            self.touch(at)

    def drop(self, cause: str, size_bytes: float) -> None:
        """Free."""
        self.held[cause] -= size_bytes
        self.total -= size_bytes

    def touch(self, at: str, **momentary_bytes: float) -> None:
        """Consider the present state, with `momentary_bytes` by cause on top, as the peak."""
        total = self.total + sum(momentary_bytes.values())
        unsharded = self.held["unsharded"] + momentary_bytes.get("unsharded", 0.0)
        self.highest_unsharded = max(self.highest_unsharded, unsharded)
        self.highest_rest = max(self.highest_rest, total - unsharded)
        if total <= self._highest:
            return
        self._highest = total
        breakdown = {cause: round(self.held[cause] + momentary_bytes.get(cause, 0.0)) for cause in CAUSES}
        self.peaks[self._stage] = Peak(round(total), at, {cause: size for cause, size in breakdown.items() if size})

    @property
    def peak(self) -> Peak:
        """The highest peak over all stages."""
        return max(self.peaks.values(), key=lambda peak: peak.total_bytes)
