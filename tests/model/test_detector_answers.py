"""The structural detector against answers reviewed by reading each model, for every type transformers builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from wizard.model.detect import detect_blocks
from wizard.model.tree import module_tree

REVIEWED = json.loads((Path(__file__).parent / "detector_answers.json").read_text())
ANSWERS: dict[str, dict[str, Any]] = REVIEWED["models"]

pytestmark = pytest.mark.skipif(
    transformers.__version__ != REVIEWED["transformers"],
    reason=f"reviewed for transformers {REVIEWED['transformers']}, here is {transformers.__version__}",
)


def build(model_type: str, settings: dict[str, Any]) -> Any:
    with_images = model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    auto = AutoModelForImageTextToText if with_images else AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(CONFIG_MAPPING[model_type](**settings))


def test_every_registered_type_was_reviewed() -> None:
    registered = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    assert registered == {*ANSWERS, *REVIEWED["cannot_be_built"]}


@pytest.mark.parametrize("model_type", sorted(ANSWERS))
def test_detector_agrees(model_type: str) -> None:
    answer = ANSWERS[model_type]
    model = build(model_type, answer.get("config", {}))
    found = {name for group in detect_blocks(module_tree(model)) for name in group.class_names}
    assert found == set(answer["blocks"])
    # Where the answer differs from what the model itself names, the review says why.
    named = set(model._no_split_modules or ()) & {type(module).__name__ for module in model.modules()}
    assert named - found == set(answer.get("named_but_no_block", {}))
    assert bool(found - named) == ("unnamed" in answer)
