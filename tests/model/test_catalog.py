"""The catalogue against transformers' own counts and the totals that the models' owners publish."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wizard.facts import Architecture
from wizard.model.architecture import architecture_of, build_model
from wizard.model.catalog import preset, presets

TOOL = Path(__file__).parents[2] / "tools" / "build_catalog.py"

PUBLISHED = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.1-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.2-3B-Instruct": 3_212_749_824,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "google/gemma-3-1b-it": 999_885_952,
    "google/gemma-3-4b-it": 4_300_079_472,
    "google/gemma-3-27b-it": 27_432_406_640,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "Qwen/Qwen2.5-VL-3B-Instruct": 3_754_622_976,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
}
"""Totals of the safetensors files on the models' hub pages."""

ACTIVE_BILLIONS = {
    "Qwen/Qwen3-30B-A3B": 3.3,
    "Qwen/Qwen3-235B-A22B": 22,
    "deepseek-ai/DeepSeek-V3": 37,
    "openai/gpt-oss-20b": 3.6,
    "openai/gpt-oss-120b": 5.1,
}
"""As the model cards round them; gpt-oss' cards leave the input embedding out."""


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("build_catalog", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def configs() -> dict[str, Any]:
    module = tool()
    return {model: module.build(entries) for model, (_, entries) in module.settings().items()}


def found(model: str) -> Architecture:
    architecture = preset(model)
    assert architecture is not None
    return architecture


@pytest.mark.parametrize("model", PUBLISHED)
def test_parameters_as_published(model: str) -> None:
    assert found(model).parameters == PUBLISHED[model]


@pytest.mark.parametrize("model", ACTIVE_BILLIONS)
def test_active_parameters_as_published(model: str) -> None:
    architecture = found(model)
    outside = architecture.vocab_size * architecture.hidden_size if model.startswith("openai") else 0
    assert (architecture.active_parameters - outside) / 1e9 == pytest.approx(ACTIVE_BILLIONS[model], rel=0.03)


def test_catalogue_counts_are_transformers_own() -> None:
    counted = {model: build_model(config).num_parameters() for model, config in configs().items()}
    assert {entry.id: found(entry.id).parameters for entry in presets()} == counted


@pytest.mark.parametrize("model", ["tiny", "Qwen/Qwen3-30B-A3B", "google/gemma-3-4b-it"])
def test_catalogue_is_what_the_inspector_says_today(model: str) -> None:
    today = architecture_of(configs()[model])
    assert json.dumps(dataclasses.asdict(found(model))) == json.dumps(dataclasses.asdict(today))


def test_published_facts_of_heads_and_cache() -> None:
    qwen = found("Qwen/Qwen2.5-7B-Instruct")
    assert (qwen.num_attention_heads, qwen.num_key_value_heads, qwen.head_dim) == (28, 4, 128)
    assert qwen.kv_bytes_per_token == 28 * 2 * 4 * 128 * 2
    # Multi-head latent attention: 512 compressed and 64 rotary values a layer.
    assert found("deepseek-ai/DeepSeek-V3").kv_bytes_per_token == 61 * 576 * 2
    assert found("google/gemma-3-4b-it").has_vision
    assert not found("google/gemma-3-1b-it").has_vision


def test_a_preset_needs_no_torch_and_little_time() -> None:
    code = (
        "import sys, time\n"
        "from wizard.model.catalog import preset\n"
        "ready = time.process_time(); assert preset('qwen/qwen2.5-7b-instruct').num_layers == 28\n"
        "print(time.process_time() - ready, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    seconds, *heavy = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert heavy == ["False", "False"]
    assert float(seconds) < 0.03


def test_other_names_are_not_guessed() -> None:
    assert preset("Qwen/Qwen2.5-8B") is None
