"""verl-wizard's core: facts, Plan, rules, memory, validation. Nothing here imports Textual."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("verl-wizard")
except PackageNotFoundError:  # a source tree on the path of a target interpreter has no metadata
    __version__ = "0+source"
