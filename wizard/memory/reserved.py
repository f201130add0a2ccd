"""What the caching allocator takes from the GPU for a replayed run: torch `c10/cuda/CUDACachingAllocator.cpp`."""

from __future__ import annotations

from wizard.memory.ledger import Ledger


def reserved_bytes(ledger: Ledger) -> int:
    """Return the bytes reserved when nothing forces the allocator to give cached blocks back.

    A freed block serves only the stream it was allocated on, so each stream's tensors peak on their own.
    """
    return round(sum(ledger.highest_by_stream.values()))
