"""Choosing layer classes: preselection, recommendation, consequences."""

from __future__ import annotations

import dataclasses

import pytest

from wizard.facts import Architecture
from wizard.model.catalog import preset
from wizard.model.describe import matching_presets, model_and_revision
from wizard.model.selection import (
    candidates,
    fitting,
    nothing_chosen,
    outcome,
    recommended,
    remark,
    selected,
    stored,
    unit_rows,
)
from wizard.plan import Fsdp


def known(model: str) -> Architecture:
    found = preset(model)
    assert found is not None
    return found


QWEN = known("Qwen/Qwen2.5-7B-Instruct")
GEMMA = known("google/gemma-3-4b-it")
MOE = known("Qwen/Qwen3-30B-A3B")


def test_preselection_is_what_verl_resolves() -> None:
    # Gemma names SiglipTextEmbeddings too, which is no class of the built model.
    assert GEMMA.no_split_modules is not None
    assert "SiglipTextEmbeddings" in GEMMA.no_split_modules
    assert "SiglipTextEmbeddings" not in selected(GEMMA, Fsdp())
    assert {"Gemma3DecoderLayer", "SiglipEncoderLayer"} <= set(selected(GEMMA, Fsdp()))
    assert selected(GEMMA, Fsdp(wrap_classes=("Mine",))) == ("Mine",)


def test_a_choice_like_verls_own_is_not_written() -> None:
    assert stored(QWEN, frozenset({"Qwen2DecoderLayer"})) == ()
    assert stored(QWEN, frozenset({"Qwen2MLP", "Qwen2DecoderLayer"})) == ("Qwen2DecoderLayer", "Qwen2MLP")


def test_recommended_are_the_blocks() -> None:
    assert recommended(QWEN) == ("Qwen2DecoderLayer",)
    assert recommended(GEMMA) == ("Gemma3DecoderLayer", "SiglipEncoderLayer")
    assert [entry.name for entry in candidates(GEMMA)[:2]] == ["Gemma3DecoderLayer", "SiglipEncoderLayer"]


@pytest.mark.parametrize(
    ("architecture", "name", "words"),
    [
        (QWEN, "Qwen2DecoderLayer", ""),
        (QWEN, "qwen2decoderlayer", "letter by letter, the class is Qwen2DecoderLayer"),
        (QWEN, "LlamaDecoderLayer", "stops when no name is left"),
        (QWEN, "Embedding", "tied, the head would find it sharded"),
        (QWEN, "Qwen2Model", "all of it is gathered at once"),
        (QWEN, "Qwen2RMSNorm", "many small gathers"),
        (QWEN, "ModuleList", "holds other modules only"),
        (MOE, "Qwen3MoeExperts", "inside a layer's unit fsdp2 stops"),
    ],
)
def test_remarks(architecture: Architecture, name: str, words: str) -> None:
    found = remark(architecture, name)
    assert words in found
    assert bool(words) == bool(found)


def test_a_class_of_single_experts_hangs() -> None:
    experts = dataclasses.replace(
        next(entry for entry in MOE.layer_classes if entry.kind == "expert"), name="Expert", count=48 * 128
    )
    single = dataclasses.replace(MOE, layer_classes=(*MOE.layer_classes, experts))
    assert "the run hangs" in remark(single, "Expert")


def test_outcome_of_the_default() -> None:
    found = outcome(QWEN, Fsdp())
    assert not found.stops
    # 28 layers, the untied embedding and head, and the root with the last norm; by hand: the embedding is largest.
    assert "31 units; the largest is model.embed_tokens (Embedding)" in found.text
    assert f"{152064 * 3584 * 2 / 2**30:.2f} GiB" in found.text
    assert "verl takes Qwen2DecoderLayer by itself" in found.text
    assert ("Qwen2DecoderLayer", "28", "233M", "0.43 GiB", "model.layers.0") in unit_rows(found.units)


def test_outcomes_that_stop_or_swallow_the_model() -> None:
    assert "Could not find any" in outcome(QWEN, Fsdp(wrap_classes=("Nope",))).text
    assert outcome(QWEN, Fsdp(wrap_classes=("Nope",))).stops
    nested = outcome(QWEN, Fsdp(wrap_classes=("Qwen2DecoderLayer", "Qwen2MLP")))
    assert nested.stops
    assert "Leave out Qwen2MLP" in nested.text
    bare = dataclasses.replace(QWEN, no_split_modules=None)
    assert "The whole model is one unit" in outcome(bare, Fsdp(strategy="fsdp")).text
    assert outcome(bare, Fsdp(strategy="fsdp2")).stops
    assert "fsdp2 stops" in nothing_chosen(bare)
    assert "Qwen2DecoderLayer" in nothing_chosen(QWEN)


def test_size_wins_under_fsdp_and_is_ignored_by_fsdp2() -> None:
    by_size = outcome(QWEN, Fsdp(strategy="fsdp", min_num_params=100_000_000)).units
    assert {unit.class_name for unit in by_size} != {"Qwen2DecoderLayer", "Qwen2ForCausalLM"}
    assert "overrides the classes" in outcome(QWEN, Fsdp(strategy="fsdp", min_num_params=100_000_000)).text
    ignored = outcome(QWEN, Fsdp(min_num_params=100_000_000))
    assert ignored.units == outcome(QWEN, Fsdp()).units
    assert "fsdp2 ignores" in ignored.text


def test_another_model_keeps_the_names_it_has() -> None:
    assert fitting(QWEN, ("Qwen2DecoderLayer", "LlamaDecoderLayer")) == ("Qwen2DecoderLayer",)


def test_what_people_type(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model@home")
    assert model_and_revision("Qwen/Qwen3-8B@abc123 ") == ("Qwen/Qwen3-8B", "abc123")
    assert model_and_revision(str(folder)) == (str(folder), "")
    assert [found.id for found in matching_presets("qwen2.5 vl 7")] == ["Qwen/Qwen2.5-VL-7B-Instruct"]
    assert not matching_presets("nothing like it")
