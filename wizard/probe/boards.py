"""GPU boards a person may name in place of measuring them.

Memory is what the driver reports as total on that board (nvidia-smi, ECC as shipped), which is less than the
label says; compute capability after NVIDIA's table of CUDA GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from wizard.facts import Interconnect


@dataclass(frozen=True)
class Board:
    """One board, under the name people use for it."""

    name: str
    label_gb: int
    memory_mib: int
    compute_capability: str
    interconnect: Interconnect
    """Between boards of one node, as the board is commonly built in."""

    @property
    def memory_bytes(self) -> int:
        """Total memory in bytes."""
        return self.memory_mib << 20


BOARDS = (
    Board("H100", 80, 81559, "9.0", "nvlink"),
    Board("H800", 80, 81559, "9.0", "nvlink"),
    Board("H200", 141, 143771, "9.0", "nvlink"),
    Board("H20", 96, 97871, "9.0", "nvlink"),
    Board("B200", 180, 183359, "10.0", "nvlink"),
    Board("A100", 80, 81920, "8.0", "nvlink"),
    Board("A100-40GB", 40, 40960, "8.0", "nvlink"),
    Board("A800", 80, 81920, "8.0", "nvlink"),
    Board("L40S", 48, 46068, "8.9", "pcie"),
    Board("L40", 48, 46068, "8.9", "pcie"),
    Board("L20", 48, 46068, "8.9", "pcie"),
    Board("A40", 48, 46068, "8.6", "pcie"),
    Board("A6000", 48, 49140, "8.6", "pcie"),
    Board("RTX6000Ada", 48, 49140, "8.9", "pcie"),
    Board("L4", 24, 23034, "8.9", "pcie"),
    Board("A10", 24, 23028, "8.6", "pcie"),
    Board("RTX5090", 32, 32607, "12.0", "pcie"),
    Board("RTX4090", 24, 24564, "8.9", "pcie"),
    Board("RTX3090", 24, 24576, "8.6", "pcie"),
    Board("V100", 32, 32768, "7.0", "nvlink"),
    Board("T4", 16, 15360, "7.5", "pcie"),
)


def board(name: str) -> Board | None:
    """Return the board of that name, however it is cased or hyphenated."""
    return next((entry for entry in BOARDS if _plain(entry.name) == _plain(name)), None)


def memory_of_label(label_gb: float) -> int:
    """Return the bytes a board sold as `label_gb` GB has: the smallest such board's, else the label read as GiB."""
    known = [entry.memory_bytes for entry in BOARDS if entry.label_gb == label_gb]
    return min(known, default=int(label_gb * (1 << 30)))


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
