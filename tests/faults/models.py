"""Small models with a fault: files as a person would have them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wizard.model.consent import code_revision
from wizard.plan import Plan

WEIGHTS = "model.safetensors"

HEALTHY = '''\
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


class MineConfig(Qwen2Config):
    model_type = "mine"


class MineForCausalLM(Qwen2ForCausalLM):
    config_class = MineConfig
'''
"""A model's own code that changes nothing."""


def change_config(model: Path, **entries: Any) -> None:
    """Change entries of a model's config.json; None removes one."""
    path = model / "config.json"
    data = json.loads(path.read_text()) | entries
    path.write_text(json.dumps({name: value for name, value in data.items() if value is not None}))


def change_tensors(model: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a model's weights."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / WEIGHTS)
    change(tensors)
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})


def consenting(plan: Plan) -> Plan:
    """Return the Plan of somebody who has read its model's code as it is now, and agreed to run it."""
    model = dataclasses.replace(
        plan.model, trust_remote_code=True, revision=code_revision(Path(plan.model.id))
    )
    return dataclasses.replace(plan, model=model)


def with_own_code(model: Path, code: str) -> Path:
    """Give a model code of its own, named by its config.json."""
    (model / "modeling_mine.py").write_text(code)
    classes = {"AutoConfig": "modeling_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.MineForCausalLM"}
    change_config(model, model_type="mine", architectures=["MineForCausalLM"], auto_map=classes)
    return model
