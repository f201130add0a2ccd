"""Reads a model's config.json with limits, before anything heavy or foreign sees it. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wizard.model.errors import ModelError

MAX_BYTES = 4 << 20
MAX_LAYERS = 2_000
MAX_EXPERTS = 20_000
MAX_EXPERT_MODULES = 100_000
"""Layers × experts: models that give each expert a module of its own take 70 µs a module to build."""
MAX_POSITIONS = 20_000_000
MAX_SIZE = 10_000_000
"""Far beyond any model there is (DeepSeek-V3: 61 layers, 256 experts, vocabulary 129,280)."""

_LAYERS = re.compile(r"(?:^|_)(?:num_layers|num_hidden_layers|n_layers?|depth|encoder_layers|decoder_layers)$")
_EXPERTS = re.compile(r"(?:^|_)(?:num_experts|num_local_experts|n_routed_experts)$")
_POSITIONS = re.compile(r"^max_position_embeddings$|^n_positions$|^n_ctx$|^max_seq_len$")
_SIZES = re.compile(r"(?:_size|_dim|_heads|_rank)$|^n_embd$|^d_model$")


def read_config(path: Path) -> dict[str, Any]:
    """Return the parsed config.json of a folder or file.

    Raises:
        ModelError: missing, too large, not JSON, not a model's config, or with sizes no model has.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ModelError(f"{file}: not found. A model folder has a config.json; is the path right?") from error
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}.") from error
    if len(data) > MAX_BYTES:
        raise ModelError(f"{file}: larger than {MAX_BYTES >> 20} MiB. This is not a model's config.")
    try:
        config = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ModelError(f"{file}: not UTF-8 text. Download the file again.") from error
    except json.JSONDecodeError as error:
        cut = " It seems to be cut off." if error.pos >= len(data.decode("utf-8-sig").rstrip()) - 1 else ""
        raise ModelError(f"{file}:{error.lineno}: not JSON: {error.msg}.{cut} Download the file again.") from error
    except RecursionError as error:
        raise ModelError(f"{file}: nested too deeply. This is not a model's config.") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file}: holds {type(config).__name__}, not an object. This is not a model's config.")
    check_sizes(config, str(file))
    return config


def check_sizes(config: dict[str, Any], file: str) -> None:
    """Refuse sizes that would take all memory or time to build.

    Raises:
        ModelError: names the file, the field and its value.
    """
    most: dict[int, tuple[int, str]] = {}
    for name, value in _numbers(config, "", 0):
        limit = _limit(name.rsplit(".", 1)[-1])
        if not limit:
            continue
        # -1 stands for "not set" in some families.
        if not -1 <= value <= limit:
            raise ModelError(f"{file}: {name} = {value} is not between 0 and {limit:,}. Correct the file.")
        most[limit] = max(most.get(limit, (0, "")), (value, name))
    layers, experts = most.get(MAX_LAYERS, (0, "")), most.get(MAX_EXPERTS, (0, ""))
    if layers[0] * experts[0] > MAX_EXPERT_MODULES:
        raise ModelError(
            f"{file}: {layers[1]} = {layers[0]} times {experts[1]} = {experts[0]} is more than "
            f"{MAX_EXPERT_MODULES:,} experts. Correct the file."
        )


def _limit(leaf: str) -> int:
    for pattern, limit in (
        (_LAYERS, MAX_LAYERS),
        (_EXPERTS, MAX_EXPERTS),
        (_POSITIONS, MAX_POSITIONS),
        (_SIZES, MAX_SIZE),
    ):
        if pattern.search(leaf):
            return limit
    return 0


def _numbers(value: Any, name: str, depth: int) -> Iterator[tuple[str, int]]:
    if isinstance(value, bool) or depth > 8:
        return
    if isinstance(value, int):
        yield name, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _numbers(child, f"{name}.{key}" if name else str(key), depth + 1)


def remote_code(config: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files and classes that `auto_map` names; both empty for a model without code of its own."""
    mapped = config.get("auto_map")
    if not isinstance(mapped, dict):
        return (), ()
    classes: list[str] = []
    for value in mapped.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str) and item not in classes:
                classes.append(item)
    # `repo--module.Class` takes the code from another repository.
    files = tuple(dict.fromkeys(f"{name.rsplit('.', 1)[0]}.py" for name in classes))
    return files, tuple(classes)
