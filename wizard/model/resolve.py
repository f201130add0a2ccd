"""From what the person typed to an `Architecture`: the catalogue first, which needs no torch, then the inspector."""

from __future__ import annotations

import os
import subprocess
from typing import Literal

from wizard.facts import Architecture
from wizard.model.catalog import preset
from wizard.model.errors import ModelError
from wizard.model.protocol import MODULE, TIME_LIMIT_SECONDS, architecture_from, ended, request_line
from wizard.target import target_command


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
    command = target_command(python, MODULE)
    try:
        done = subprocess.run(
            command,
            input=request_line(model, revision, trust_remote_code, role),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_SECONDS,
            check=False,
        )
    except OSError as error:
        raise ModelError(f"{command[0]}: cannot be started: {error.strerror}. Check --python.") from error
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"{model}: no answer within {TIME_LIMIT_SECONDS:.0f} s.") from error
    lines = done.stdout.splitlines()
    if len(lines) < 2:
        raise ended(python, model, done.stderr)
    return architecture_from(lines[-1], model)
