"""The closed forms against what autograd keeps when transformers runs: bytes the inspector traced on fake tensors."""

from __future__ import annotations

import pytest

from wizard.memory.architecture import Options, decoder_layers, dims_of, shape_of
from wizard.memory.shapes import decoder_block
from wizard.model.catalog import preset, presets
from wizard.plan import Fsdp

CLOSED = frozenset(
    ("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "gemma3", "gemma3_text", "qwen2_5_vl")
)  # fmt: skip
"""Model types the closed form describes; others take the traced figure (latent attention, gpt-oss' experts)."""
IDS = [entry.id for entry in presets()]


@pytest.mark.parametrize("model", IDS)
def test_kept_bytes_of_a_layer(model: str) -> None:
    architecture = preset(model)
    assert architecture
    if architecture.model_type not in CLOSED:
        pytest.skip(f"{architecture.model_type}: the traced figure is used itself")
    (_, group), *_ = decoder_layers(architecture)
    block = decoder_block(dims_of(architecture, group, Options()), weights=group.parameters, repeat=group.repeat)
    assert block.saved_bytes_per_token == pytest.approx(architecture.saved_bytes_per_token, rel=0.005)


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
@pytest.mark.parametrize("model", IDS)
def test_units_hold_every_parameter_once(model: str, strategy: str) -> None:
    architecture = preset(model)
    assert architecture
    shape = shape_of(architecture, Fsdp(strategy=strategy), Options())  # type: ignore[arg-type]
    assert shape.parameters == architecture.parameters


def test_traced_figure_is_used_where_there_is_no_closed_form() -> None:
    architecture = preset("openai/gpt-oss-20b")
    assert architecture
    block = shape_of(architecture, Fsdp(), Options()).blocks[0]
    assert block.saved_bytes_per_token == pytest.approx(architecture.saved_bytes_per_token)
