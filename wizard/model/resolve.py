"""From what the person typed to an `Architecture`: the catalogue first, which needs no torch, then the inspector."""

from __future__ import annotations

import os
from typing import Literal

from wizard.facts import Architecture
from wizard.model.catalog import preset
from wizard.model.errors import ModelError


def known(model: str, role: str = "actor") -> Architecture | None:
    """Return a catalogued architecture, None where the model has to be inspected; costs no subprocess."""
    if role != "actor" or os.path.isdir(os.path.expanduser(model)):
        return None
    return preset(model)


def resolve_model(
    model: str,
    *,
    python: str = "",
    revision: str = "",
    trust_remote_code: bool = False,
    role: Literal["actor", "critic"] = "actor",
) -> Architecture:
    """Return the architecture of a preset, a local folder or a Hugging Face id.

    Raises:
        RemoteCodeConsentNeeded: its config names code, and `trust_remote_code` is False.
        ModelError: anything else that is wrong with it.
    """
    if not model.strip():
        raise ModelError("model.id is empty. Give a folder, a Hugging Face id, a preset, or `tiny`.")
    found = known(model, role)
    if found is not None:
        return found
    # Most answers need no process, and thus not what it takes to load this.
    import asyncio

    return asyncio.run(_once(model, python, revision, trust_remote_code, role))


async def _once(model: str, python: str, revision: str, trust_remote_code: bool, role: str) -> Architecture:
    from wizard.model.process import InspectorProcess

    inspector = InspectorProcess(python)
    try:
        return await inspector.resolve(model, revision=revision, trust_remote_code=trust_remote_code, role=role)
    finally:
        await inspector.close()
