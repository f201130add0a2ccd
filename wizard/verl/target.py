"""The verl of the target interpreter: its version, and its schema where that release is not recorded here."""

from __future__ import annotations

import json

from wizard.files import write_atomic
from wizard.probe.ask import NoAnswer, ask
from wizard.verl.schema import SchemaError, extracted_path, known_versions, load_schema, minor_of

ASK_SECONDS = 30.0
EXTRACT_SECONDS = 120.0


def verl_version_of(python: str) -> str:
    """Return the version of the verl in `python` (empty: this interpreter), empty where there is none.

    Afterwards `load_schema` knows that version: a release that is not recorded here is read in the target, once.

    Raises:
        SchemaError: the interpreter gives no answer, or its verl cannot be read and no release stands for it.
    """
    try:
        answer = ask(python, "wizard.probe.installed", ["list", "verl=verl"], timeout_seconds=ASK_SECONDS)
        version = str(answer["versions"].get("verl") or "")
        if version and not _known(version):
            _extract(python, version)
    except NoAnswer as error:
        raise SchemaError(f"its verl is not known: {error}") from error
    return version


def _known(version: str) -> bool:
    # A checkout keeps its version (0.10.0.dev) while its keys change: it is read anew each time.
    return version in known_versions() or ("dev" not in version and extracted_path(version).exists())


def _extract(python: str, version: str) -> None:
    minor_of(version)
    try:
        schema = ask(python, "wizard.verl.extract", timeout_seconds=EXTRACT_SECONDS)
    except NoAnswer:
        load_schema(version)  # raises where no recorded release stands for it
        return
    path = extracted_path(version)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(schema, separators=(",", ":")), overwrite=True)
    load_schema.cache_clear()
