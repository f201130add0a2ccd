"""What the predictor says: peaks by phase, what holds them, and what would make a Plan fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from wizard.findings import Fix
from wizard.plan import GpuGroup, Role

PhaseName = Literal["actor_update", "log_prob", "ref_log_prob", "critic_update", "rollout", "weight_sync"]


class PredictionError(ValueError):
    """The Plan does not hold what a prediction needs; the message is for the person."""


@dataclass(frozen=True)
class PhasePeak:
    """The most one GPU holds in one phase of a training step."""

    name: PhaseName
    peak_allocated_bytes: int
    """Bytes in tensors; for the rollout, the inference engine's whole share."""
    peak_reserved_bytes: int
    """Bytes the process takes from the GPU while it has them: tensors and the allocator's caches of each stream."""
    breakdown: dict[str, int]
    """Bytes by cause at the peak; they sum to `peak_allocated_bytes`."""
    at: str
    """Event of the replay at which the peak stands, as in `block 0 MLP backward`."""
    role: Role
    """The role whose GPUs the phase runs on."""
    lacking_bytes: int = 0
    """Bytes the inference engine's share is too small by: for its weights and the cache of one longest sequence."""
    elsewhere_bytes: int = 0
    """Bytes other processes hold on the GPU meanwhile: CUDA contexts, a sleeping or serving inference engine."""

    @property
    def needed_bytes(self) -> int:
        """Bytes the GPU must have for this phase: before the caching allocator fails it gives cached blocks back."""
        return self.peak_allocated_bytes + self.elsewhere_bytes

    def fits(self, memory_bytes: int) -> bool:
        """Return whether a GPU of that size can run the phase."""
        return self.needed_bytes <= memory_bytes and not self.lacking_bytes


@dataclass(frozen=True)
class GroupPeak:
    """What one GPU of a group of roles goes through."""

    group: GpuGroup
    phases: tuple[PhasePeak, ...]
    """Phases that run on the group; none for a reward model alone, whose engine is not predicted."""

    @property
    def peak(self) -> PhasePeak | None:
        """The phase that needs most of the group's GPUs."""
        return max(self.phases, key=lambda phase: phase.needed_bytes, default=None)

    def fits(self, memory_bytes: int) -> bool | None:
        """Return whether GPUs of that size can run the group's phases; None for 0, which is an unknown size."""
        return all(phase.fits(memory_bytes) for phase in self.phases) if memory_bytes else None


@dataclass(frozen=True)
class Prediction:
    """Peaks of one GPU over a training step, and host memory of one node."""

    phases: tuple[PhasePeak, ...]
    groups: tuple[GroupPeak, ...]
    """The same phases by the GPUs they run on; one group while all roles share the machine."""
    host_bytes_per_node: int
    host_breakdown: dict[str, int]
    gpu_memory_bytes: int
    """Memory of one GPU; 0 when no machine is known."""
    host_memory_bytes: int
    largest_token_budget: int | None
    """Most tokens a micro-batch may hold on one GPU so that the actor's update fits; 0 when none does, None when the
    machine is unknown."""
    remedies: tuple[Fix, ...] = field(default=())
    """Changes of the Plan that make it fit, the smallest first; empty when it fits."""

    @property
    def peak(self) -> PhasePeak:
        """The phase that needs most of the GPU."""
        return max(self.phases, key=lambda phase: phase.needed_bytes)

    @property
    def fits_gpu(self) -> bool | None:
        """Whether every phase fits the GPU; None when its memory is unknown."""
        memory = self.gpu_memory_bytes
        return all(phase.fits(memory) for phase in self.phases) if memory else None

    @property
    def has_groups(self) -> bool:
        """Whether roles have GPUs of their own."""
        return len(self.groups) > 1

    @property
    def fits_host(self) -> bool | None:
        """Whether a node's processes fit its memory; None when it is unknown."""
        return self.host_bytes_per_node <= self.host_memory_bytes if self.host_memory_bytes else None

    @property
    def fits(self) -> bool | None:
        """Whether GPU and host suffice; None when the GPU's memory is unknown."""
        if self.fits_gpu is None:
            return None
        return self.fits_gpu and self.fits_host is not False

    def phase(self, name: str) -> PhasePeak | None:
        """Return the peak of one phase, or None when the Plan has no such phase."""
        return next((phase for phase in self.phases if phase.name == name), None)
