"""Reads a model's architecture off a meta-device build. Runs in the target interpreter.

Speaks JSON lines: one request a line on stdin, one answer a line on stdout, until stdin ends. A request is
`{"model", "revision", "trust_remote_code", "role"}`, an answer `{"architecture": {…}}` or `{"error": …, …}`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from wizard.model.architecture import architecture_of
from wizard.model.config_file import read_config, remote_code
from wizard.model.errors import ModelError, RemoteCodeConsentNeeded

READY = {"ready": True}


def main(argv: list[str]) -> int:
    """Answer requests until stdin ends. Nothing but answers reaches stdout, whatever a library prints."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "5")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "10")
    import transformers
    from transformers.utils import logging

    logging.set_verbosity_error()
    # The classes below cost 2 s to import: before the first request, not within it.
    _ = transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText, transformers.Qwen2ForCausalLM
    _send(answers, READY)
    for line in sys.stdin:
        _send(answers, _answer(json.loads(line)))
    return 0


def _send(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"architecture": dataclasses.asdict(_inspect(**request))}
    except RemoteCodeConsentNeeded as needed:
        return {"error": str(needed), "files": needed.files, "classes": needed.classes, "revision": needed.revision}
    except ModelError as error:
        return {"error": str(error)}
    except Exception as error:
        # Whatever a config or foreign code throws must become an answer: the process serves further requests.
        return {"error": _explained(request["model"], error)}


def _inspect(model: str, revision: str, trust_remote_code: bool, role: str) -> Any:
    folder, commit = _located(model, revision)
    config_dict = read_config(folder)
    files, classes = remote_code(config_dict)
    if files and not trust_remote_code:
        raise RemoteCodeConsentNeeded(model, files, classes, commit)
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    return architecture_of(config, trust_remote_code=trust_remote_code, role=role, has_code=bool(files))


def _located(model: str, revision: str) -> tuple[Path, str]:
    """Return the folder with config.json, and the hub's commit: a local folder, the cache, then the hub."""
    if os.path.isdir(model):
        return Path(model), ""
    if model.startswith((".", "/", "~")):
        raise ModelError(f"{model}: no such folder. Check the path, or give a Hugging Face id.")
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    # Code files are needed beside the config once the person agreed to run them.
    wanted = ["config.json", "*.py"]
    pinned = revision or None
    try:
        with contextlib.suppress(LocalEntryNotFoundError):
            path = Path(hf_hub_download(model, "config.json", revision=pinned, local_files_only=True))
            return path.parent, path.parent.name
        commit = HfApi().model_info(model, revision=pinned, timeout=10).sha or ""
        return Path(snapshot_download(model, revision=commit or pinned, allow_patterns=wanted)), commit
    except HFValidationError as error:
        raise ModelError(f"{model!r} is neither a folder nor a Hugging Face id (owner/name).") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403, 404):
            raise ModelError(
                f"{model}: the hub answered {status}. The id is wrong, or the model is private or gated: accept its "
                "licence on the model's page and run `hf auth login`."
            ) from error
        raise ModelError(f"{model}: the hub answered {status}. Try again, or give a local folder.") from error
    except (OSError, *_network_errors()) as error:
        raise ModelError(
            f"{model}: not in the cache, and the hub cannot be reached from here. Give a local folder, choose a "
            "preset, or download it where there is a network: hf download " + model
        ) from error


def _network_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises without a network: requests' errors are OSErrors, httpx's (hub 1.x) are not."""
    try:
        import httpx
    except ImportError:
        return ()
    return (httpx.HTTPError,)


def _explained(model: str, error: Exception) -> str:
    text = str(error).strip().splitlines()[0][:300] if str(error).strip() else ""
    if "does not recognize this architecture" in str(error) or "Unrecognized model" in str(error):
        import transformers

        return (
            f"{model}: config.json's model_type is unknown to transformers {transformers.__version__}. Install a newer "
            f"transformers within verl's range, or check the field. ({text})"
        )
    kind = type(error).__name__
    return f"{model}: config.json cannot be built: {kind}: {text}. Check its fields against the model's page."
