"""What verl's own wheel metadata asks of the packages beside it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class Demand:
    """What verl demands of one package."""

    needed: SpecifierSet | None
    """Of every installation; None when verl does not list the package."""
    pins: tuple[SpecifierSet, ...]
    """Versions its optional extras (fsdp, vllm, sglang, …) were released with."""


def demand(requires: Sequence[str], distribution: str, python_version: str = "") -> Demand:
    """Read `Requires-Dist` lines for one distribution; lines that are not PEP 508 are passed over.

    Args:
        requires: the lines of verl's metadata.
        distribution: package asked about, in any spelling.
        python_version: `major.minor.patch` of the target, for markers; empty means this interpreter's.
    """
    python = python_version or platform.python_version()
    environment = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2]), "extra": ""}
    needed: SpecifierSet | None = None
    pins: dict[str, SpecifierSet] = {}
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) != canonicalize_name(distribution):
            continue
        if requirement.marker is None or requirement.marker.evaluate(environment):
            needed = requirement.specifier if needed is None else needed & requirement.specifier
        elif requirement.specifier and "extra" in str(requirement.marker):
            pins[str(requirement.specifier)] = requirement.specifier
    return Demand(needed, tuple(pins.values()))


def satisfies(version: str, specifier: SpecifierSet) -> bool:
    """Return whether a version is within a specifier; vendors' builds such as `2.6.0a0+nv25.01` count as the release.

    Raises:
        InvalidVersion: the version is not PEP 440.
    """
    found = Version(version)
    return specifier.contains(found, prereleases=True) or (
        found.is_prerelease and found.local is not None and specifier.contains(found.base_version)
    )


def is_version(version: str) -> bool:
    """Return whether a version can be compared at all."""
    try:
        Version(version)
    except InvalidVersion:
        return False
    return True
