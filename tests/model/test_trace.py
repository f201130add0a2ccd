"""Bytes a layer keeps: against a forward on real tensors, and against the closed form of memory papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import small_config
from transformers import AutoModelForCausalLM

from wizard.model.architecture import architecture_of
from wizard.model.catalog import preset
from wizard.model.trace import saved_bytes_per_token


def kept_for_real(name: str, tokens: int) -> float:
    """Run the whole model on real bf16 tensors and count what its layers' graph keeps, a token and layer."""
    config = small_config(name)
    config._attn_implementation = "sdpa"
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        kept = model.model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False).last_hidden_state
    assert kept.requires_grad
    return sum(storages.values()) / tokens


def test_a_real_forward_keeps_as_much() -> None:
    tokens = 256
    per_layer = kept_for_real("qwen2", tokens) / 3
    traced = saved_bytes_per_token(small_config("qwen2"))
    # The last norm, the rotary tables and the input ids belong to no layer.
    outside = 64 * (4 + 2 + 2) + 16 * 2 * 2 + 32
    assert per_layer == pytest.approx(traced, abs=outside / 3 + 8)


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen2.5-7B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-32B-Instruct"]
)
def test_llama_like_layers_keep_the_closed_form(model: str) -> None:
    found = preset(model)
    assert found is not None
    query = found.num_attention_heads * found.head_dim
    key_value = found.num_key_value_heads * found.head_dim
    # Two norms of 8 h, q and output, k and v, log-sum-exp in fp32, four tensors of the MLP; bf16 otherwise.
    expected = (
        16 * found.hidden_size + 4 * query + 4 * key_value + 4 * found.num_attention_heads + 8 * found.intermediate_size
    )
    assert found.saved_bytes_per_token == pytest.approx(expected, abs=8)


def test_layers_of_a_mixture_are_traced_without_the_dense_ones() -> None:
    found = architecture_of(small_config("deepseek-v3"))
    assert found.saved_bytes_per_token == saved_bytes_per_token(small_config("deepseek-v3")) > 0


def test_a_loop_over_tokens_is_not_what_a_gpu_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert saved_bytes_per_token(small_config("jamba")) == 0
    assert "loops over tokens" in capsys.readouterr().err
    # What its layer left behind must not meet the next model.
    assert saved_bytes_per_token(small_config("qwen2")) > 0
