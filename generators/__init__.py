"""Plan → text. Pure but for `write`, which is the only one that touches the disk."""

from generators.files import render, write

__all__ = ["render", "write"]
