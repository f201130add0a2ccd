"""Reads a model's architecture off a meta-device build. Runs in the target interpreter.

Speaks JSON lines: one request a line on stdin, one answer a line on stdout, until stdin ends. A request is
`{"model", "revision", "trust_remote_code", "role", "config"}`, where `config` is a catalogued model's config or null;
an answer is `{"architecture": {…}}` or `{"error": …, …}`, where `foreign` marks text that is not ours, which may hold
a secret.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

from wizard.facts import Architecture
from wizard.model.architecture import architecture_of
from wizard.model.consent import check_consent
from wizard.model.errors import ModelError, RemoteCodeConsentNeeded
from wizard.model.tiny import TINY_CONFIG

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
    # Model classes cost 2 s to import: before the first request, not within it.
    architecture_of(transformers.Qwen2Config(**TINY_CONFIG))
    # A large model is a million live objects: the collector would walk them and torch's own again and again.
    gc.freeze()
    gc.disable()
    _send(answers, READY)
    for line in sys.stdin:
        _send(answers, _answer(json.loads(line)))
        gc.collect()
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
        return {"error": _explained(request["model"], error), "foreign": True}


def _inspect(
    model: str, revision: str, trust_remote_code: bool, role: str, config: dict[str, Any] | None
) -> Architecture:
    from transformers import AutoConfig

    if config is not None:
        return architecture_of(AutoConfig.for_model(**config), role=role)
    folder, commit = _located(model, revision)
    files = check_consent(model, folder, commit, revision=revision, trust_remote_code=trust_remote_code)
    if files:
        missing = [name for name in files if "--" not in name and not (folder / name).is_file()]
        if missing and not commit:
            raise ModelError(
                f"{folder}: config.json's auto_map names {missing[0]}, which is not there. Download it too."
            )
        if missing:
            folder = _download(model, commit, ["config.json", "*.py"])
    found = AutoConfig.from_pretrained(folder, trust_remote_code=bool(files))
    return architecture_of(found, trust_remote_code=bool(files), role=role, has_code=bool(files))


def _located(model: str, revision: str) -> tuple[Path, str]:
    """Return the folder with config.json, and the hub's commit: a local folder, the cache, then the hub.

    Nothing but config.json is downloaded.
    """
    path = Path(model)
    if path.is_dir():
        return path, ""
    if path.name == "config.json" and path.is_file():
        return path.parent, ""
    if model.startswith((".", "/", "~")):
        raise ModelError(f"{model}: no such folder. Check the path, or give a Hugging Face id.")
    folder = _download(model, revision, ["config.json"])
    if not (folder / "config.json").exists():
        raise ModelError(f"{model}: has no config.json on the hub. Is it a model for transformers?")
    return folder, folder.name


def _download(model: str, revision: str, patterns: list[str]) -> Path:
    """Return the snapshot folder of a hub's model, named by its commit."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    pinned = revision or None
    try:
        if patterns == ["config.json"]:
            with contextlib.suppress(LocalEntryNotFoundError):
                return Path(hf_hub_download(model, "config.json", revision=pinned, local_files_only=True)).parent
        return Path(snapshot_download(model, revision=pinned, allow_patterns=patterns))
    except HFValidationError as error:
        raise ModelError(f"{model!r} is neither a folder nor a Hugging Face id (owner/name).") from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403, 404):
            raise ModelError(
                f"{model}: the hub answered {status}. The id or revision is wrong, or the model is private or gated: "
                "accept its licence on the model's page and run `hf auth login`."
            ) from error
        raise ModelError(f"{model}: the hub answered {status}. Try again, or give a local folder.") from error
    except (OSError, LocalEntryNotFoundError, *_network_errors()) as error:
        raise ModelError(
            f"{model}: not in the cache, and the hub cannot be reached from here. Give a local folder, choose a "
            f"preset, or download it where there is a network: hf download {model}"
        ) from error


def _network_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises without a network: requests' errors are OSErrors, httpx's (hub 1.x) are not."""
    try:
        import httpx
    except ImportError:
        return ()
    return (httpx.HTTPError,)


def _explained(model: str, error: Exception) -> str:
    text = str(error).strip().split("\n")[0][:300]
    if "does not recognize this architecture" in str(error) or "Unrecognized model" in str(error):
        import transformers

        return (
            f"{model}: config.json's model_type is unknown to transformers {transformers.__version__}. Install a newer "
            "transformers within verl's range (config.json's transformers_version is the one it was saved with), or "
            f"check the field. ({text})"
        )
    kind = type(error).__name__
    return f"{model}: config.json cannot be built: {kind}: {text}. Check its fields against the model's page."
