"""What a run proves, and where it fails: each with real processes, real collectives, a real model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.validation.conftest import Finished, finish
from wizard.facts import Architecture
from wizard.model.catalog import preset
from wizard.model.units import fsdp_units
from wizard.plan import Fsdp
from wizard.validation.spec import ValidationSpec

pytest.importorskip("torch")
Specs = Callable[..., ValidationSpec]


@pytest.fixture(scope="module")
def passed(make_spec: Specs, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    spec = make_spec(benchmark_runs=1, param_offload=True, optimizer_offload=True, notes=("a note",))
    return finish(spec, tmp_path_factory.mktemp("run"))


def architecture() -> Architecture:
    found = preset("tiny")
    assert found is not None
    return found


class TestPassed:
    def test_verdict_and_steps_on_both_ranks(self, passed: Finished):
        assert passed.verdict.outcome == "passed", passed.verdict.sentence
        for rank in (0, 1):
            told = [e.step for e in passed.events if e.kind == "step_finished" and e.rank == rank]
            assert told == [
                *("environment", "load", "wrap", "forward", "backward", "optimizer", "benchmark", "offload", "parity")
            ]
        assert json.loads((passed.folder / "result.json").read_text())["outcome"] == "passed"

    def test_units_and_parameters_are_the_models(self, passed: Finished, tiny: Path):
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(tiny)
        assert passed.metric("parameters") == model.num_parameters()
        # Untied: embedding, head, four layers and the root (verl 0.9.1 `_select_fsdp2_wrap_targets`).
        assert passed.metric("fsdp_units") == 7
        assert sum(unit.count for unit in fsdp_units(architecture(), Fsdp())) == 7
        assert passed.metric("local_parameters") == passed.metric("local_parameters", rank=1) == 234_560 // 2

    def test_only_the_first_rank_loads_weights(self, passed: Finished):
        assert passed.metric("on_meta_device") is False
        assert passed.metric("on_meta_device", rank=1) is True

    def test_loss_is_the_unsharded_models(self, passed: Finished, tiny: Path):
        import torch
        from transformers import AutoModelForCausalLM

        # The batch again, by hand: seed 1, packed sequences of 32 tokens.
        ids = torch.randint(384, (1, 64), generator=torch.Generator().manual_seed(1))
        model = AutoModelForCausalLM.from_pretrained(tiny, torch_dtype=torch.float32)
        total = 0.0
        with torch.no_grad():
            for part in ids.split(32, dim=1):
                logits = model(part).logits[0, :-1]
                total += float(torch.nn.functional.cross_entropy(logits, part[0, 1:], reduction="sum"))
        assert passed.metric("loss") == pytest.approx(total / 64, rel=5e-3)
        assert passed.metric("parity_relative_difference") < 1e-3

    def test_times_and_rates_fit_each_other(self, passed: Finished):
        rate, seconds = passed.metric("tokens_per_second"), passed.metric("step_seconds")
        assert rate == pytest.approx(64 * 2 / seconds)
        assert passed.metric("forward_backward_seconds") > passed.metric("forward_seconds")

    def test_effective_dtypes_and_notes_are_told(self, passed: Finished):
        assert passed.metric("master_dtype") == "float32"
        logs = [e.data["message"] for e in passed.events if e.kind == "log"]
        assert "a note" in logs


class TestFailed:
    def run(self, spec: ValidationSpec, folder: Path, step: str, cause: str) -> Finished:
        found = finish(spec, folder)
        assert (found.verdict.outcome, found.verdict.step) == ("failed", step), found.verdict.sentence
        assert cause in found.verdict.cause
        return found

    def test_wrong_class(self, make_spec: Specs, tmp_path: Path):
        self.run(make_spec(wrap_classes=("qwen2decoderlayer",)), tmp_path, "wrap", "qwen2decoderlayer")

    def test_sequence_parallel_size_that_does_not_divide_the_world(self, make_spec: Specs, tmp_path: Path):
        self.run(make_spec(ulysses_size=3), tmp_path, "environment", "ulysses_size 3 does not divide the world size 2")

    def test_missing_tensor(self, make_spec: Specs, tiny: Path, tmp_path: Path):
        from safetensors.torch import load_file, save_file

        model = tmp_path / "model"
        shutil.copytree(tiny, model)
        tensors = load_file(model / "model.safetensors")
        del tensors["model.layers.2.mlp.up_proj.weight"]
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        run = tmp_path / "run"
        run.mkdir()
        self.run(make_spec(model=str(model)), run, "load", "model.layers.2.mlp.up_proj.weight")

    def test_nan_weight(self, make_spec: Specs, tiny: Path, tmp_path: Path):
        from safetensors.torch import load_file, save_file

        model = tmp_path / "model"
        shutil.copytree(tiny, model)
        tensors = load_file(model / "model.safetensors")
        tensors["model.layers.1.self_attn.v_proj.weight"][3, 5] = float("nan")
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        run = tmp_path / "run"
        run.mkdir()
        self.run(make_spec(model=str(model)), run, "forward", "model.layers.1.self_attn.v_proj")

    def test_unit_inside_a_unit(self, make_spec: Specs, tmp_path: Path):
        """What the rule `wrap-nested` says of verl: torch refuses it as soon as two ranks shard."""
        nested = make_spec(wrap_classes=("Qwen2DecoderLayer", "Qwen2MLP"))
        self.run(nested, tmp_path, "wrap", "Cannot concatenate overlapping meshes")

    def test_other_units_than_planned(self, make_spec: Specs, tmp_path: Path):
        self.run(make_spec(expected_units=5), tmp_path, "wrap", "expected 5 FSDP units, found 7")


@pytest.mark.parametrize("size", [2, 4])
def test_ulysses_gives_the_loss_and_gradient_of_one_rank(make_spec: Specs, tmp_path: Path, size: int):
    """4 ranks share 2 key-value heads: fewer heads than ranks."""
    found = finish(make_spec(ulysses_size=size, world_size=size), tmp_path)
    assert found.verdict.outcome == "passed", found.verdict.sentence
    alone_folder = tmp_path / "alone"
    alone_folder.mkdir()
    alone = finish(make_spec(world_size=1), alone_folder)
    assert found.metric("loss") == pytest.approx(alone.metric("loss"), rel=1e-3)
    assert found.metric("gradient_norm") == pytest.approx(alone.metric("gradient_norm"), rel=1e-2)


def test_hybrid_sharding(make_spec: Specs, tmp_path: Path):
    found = finish(make_spec(world_size=4, fsdp_size=2), tmp_path)
    assert found.verdict.outcome == "passed", found.verdict.sentence
    assert found.metric("shards") == 2
    assert found.metric("local_parameters") == 234_560 // 2


def test_lora_offload_policy_and_random_weights_from_a_config(make_spec: Specs, tmp_path: Path):
    from wizard.model.tiny import TINY_CONFIG

    tied = TINY_CONFIG | {"tie_word_embeddings": True}
    spec = make_spec(model="", model_config=tied, random_weights=True, offload_policy=True, lora_rank=4)
    found = finish(spec, tmp_path)
    assert found.verdict.outcome == "passed", found.verdict.sentence
    assert found.metric("tied_embeddings") is True
    # Rank 4 on the seven linear layers of four blocks: 4 × (in + out) elements each.
    per_layer = 4 * ((64 + 64) + 2 * (64 + 32) + (64 + 64) + 3 * (64 + 176))
    assert found.metric("trainable_parameters") == 4 * per_layer
