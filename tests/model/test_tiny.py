"""The built-in model: real files that transformers loads and runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from wizard.model.catalog import preset
from wizard.model.errors import ModelError
from wizard.model.tiny import TINY_CONFIG, ensure_tiny, tiny_folder, write_tiny


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_target_writes_a_model_that_runs(cache: Path) -> None:
    folder = ensure_tiny()
    assert folder == tiny_folder() == cache / "verl-wizard" / "tiny-model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    known = preset("tiny")
    assert known is not None
    assert model.num_parameters() == known.parameters
    assert next(model.parameters()).dtype == torch.bfloat16
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 2 = ?"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "user: 2 + 2 = ?<|end|>assistant: "
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert int(ids.max()) < TINY_CONFIG["vocab_size"]
    assert tokenizer.decode(ids[0]) == text
    assert torch.isfinite(model(ids).logits).all()
    # A second call finds it; nothing is written again.
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert ensure_tiny() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_two_writers_agree(cache: Path) -> None:
    folder = cache / "model"
    write_tiny(folder)
    weights = (folder / "model.safetensors").read_bytes()
    write_tiny(folder)
    assert (folder / "model.safetensors").read_bytes() == weights
    assert [entry.name for entry in cache.iterdir() if entry.name.startswith(".")] == []


def test_an_interpreter_that_cannot_is_named(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"/nowhere/python could not write the built-in model"):
        ensure_tiny("/nowhere/python")
    assert not tiny_folder().exists()
