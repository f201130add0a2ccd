"""What the inspector is asked and what it answers, on the wizard's side."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec

from wizard.facts import Architecture
from wizard.model.catalog import preset_config
from wizard.model.errors import ModelError, RemoteCodeConsentNeeded
from wizard.scrub import scrub

MODULE = "wizard.model.inspect"
TIME_LIMIT_SECONDS = 120.0


def request_line(model: str, revision: str, trust_remote_code: bool, role: str) -> str:
    """Return one request of the inspector's protocol."""
    request = {
        "model": os.path.expanduser(model),
        "revision": revision,
        "trust_remote_code": trust_remote_code,
        "role": role,
        "config": None if os.path.isdir(os.path.expanduser(model)) else preset_config(model),
    }
    return json.dumps(request) + "\n"


def architecture_from(line: str, model: str) -> Architecture:
    """Read one answer.

    Raises:
        RemoteCodeConsentNeeded: the model brings code of its own.
        ModelError: the model cannot be used, or the answer is no answer.
    """
    try:
        answer: dict[str, Any] = json.loads(line)
        if "architecture" in answer:
            return msgspec.convert(answer["architecture"], Architecture)
        if answer.get("files"):
            raise RemoteCodeConsentNeeded(
                model, tuple(answer["files"]), tuple(answer["classes"]), str(answer["revision"])
            )
        message = str(answer["error"])
        raise ModelError(scrub(message) if answer.get("foreign") else message)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{model}: the inspector answered with something else: {line[:200]!r}") from error


def ended(python: str, model: str, stderr: str) -> ModelError:
    """Return the error for an inspector that ended without an answer."""
    last = (scrub(stderr).strip() or "no message").splitlines()[-1][:300]
    return ModelError(
        f"{model}: the inspector in {python or 'this interpreter'} ended without an answer: {last}. "
        "It needs torch and transformers there."
    )
