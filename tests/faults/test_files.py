"""Faults of a model's files: damaged, missing, of another model."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from tests.faults.conftest import Bench, plan_of
from tests.faults.models import WEIGHTS, change_config, change_tensors

pytest.importorskip("torch")
pytestmark = pytest.mark.fault


def downloaded_again(tiny: Path, model: Path, name: str = WEIGHTS) -> None:
    """What the remedy says: the file as it was published."""
    shutil.copyfile(tiny / name, model / name)


def test_truncated_weights(bench: Bench, tiny: Path, model: Path):
    whole = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    bench.fails("checkpoint-truncated", plan_of(model))
    downloaded_again(tiny, model)
    bench.passes(plan_of(model))


def test_git_lfs_pointer_in_place_of_weights(bench: Bench, tiny: Path, model: Path):
    (model / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 475128\n")
    bench.fails("checkpoint-truncated", plan_of(model))
    downloaded_again(tiny, model)
    bench.passes(plan_of(model))


def test_missing_shard(bench: Bench, model: Path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / WEIGHTS)
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, model / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, held in files.items() for name in held}}
    (model / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    (model / WEIGHTS).unlink()
    second = model / "model-00002-of-00002.safetensors"
    kept = second.read_bytes()
    second.unlink()
    found = bench.fails("checkpoint-file-missing", plan_of(model))
    assert found.diagnosis is not None
    assert second.name in found.diagnosis.what
    second.write_bytes(kept)
    bench.passes(plan_of(model))


def test_no_weights_at_all(bench: Bench, tiny: Path, model: Path):
    (model / WEIGHTS).unlink()
    bench.fails("model-not-found", plan_of(model))
    downloaded_again(tiny, model)
    bench.passes(plan_of(model))


def test_missing_tensor(bench: Bench, tiny: Path, model: Path):
    change_tensors(model, lambda tensors: tensors.pop("model.layers.2.mlp.up_proj.weight"))
    found = bench.fails("checkpoint-tensor-missing", plan_of(model))
    assert found.diagnosis is not None
    assert "model.layers.2.mlp.up_proj.weight" in found.diagnosis.what
    downloaded_again(tiny, model)
    bench.passes(plan_of(model))


def test_weights_of_another_vocabulary(bench: Bench, model: Path):
    change_config(model, vocab_size=400)
    found = bench.fails("checkpoint-mismatch", plan_of(model))
    assert found.diagnosis is not None
    assert "lm_head.weight" in found.diagnosis.what
    change_config(model, vocab_size=384)
    bench.passes(plan_of(model))


def test_damaged_config(bench: Bench, tiny: Path, model: Path):
    (model / "config.json").write_text('{"model_type": "qwen2", "hidden_size": 64,')
    bench.fails("config-damaged", plan_of(model))
    downloaded_again(tiny, model, "config.json")
    bench.passes(plan_of(model))


def test_unknown_model_type(bench: Bench, tiny: Path, model: Path):
    change_config(model, model_type="qwen2_moe_next_vl")
    bench.fails("model-unknown-type", plan_of(model))
    downloaded_again(tiny, model, "config.json")
    bench.passes(plan_of(model))


def test_config_says_untied_and_the_checkpoint_has_no_head(bench: Bench, model: Path):
    change_tensors(model, lambda tensors: tensors.pop("lm_head.weight"))
    plan = dataclasses.replace(plan_of(model), architecture=None)
    bench.fails("tied-head-missing", plan)
    change_config(model, tie_word_embeddings=True)
    bench.passes(plan)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_poisoned_weight(bench: Bench, tiny: Path, model: Path, value: str):
    def poison(tensors):
        tensors["model.layers.1.self_attn.v_proj.weight"][3, 5] = float(value)

    change_tensors(model, poison)
    found = bench.fails("non-finite-parameter", plan_of(model))
    assert found.diagnosis is not None
    assert "model.layers.1.self_attn.v_proj.weight" in found.diagnosis.what
    downloaded_again(tiny, model)
    bench.passes(plan_of(model))
