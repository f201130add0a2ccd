"""Runs that pass and are wrong: only the comparison with the rung before tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import plan_of
from tests.faults.models import consenting, with_own_code
from tests.validation.conftest import Finished, finish
from wizard.debugging.compare import Observed, differences
from wizard.debugging.ladder import DDP, FSDP, ONE_DEVICE, ULYSSES, ladder
from wizard.diagnosis import diagnose
from wizard.fixing import apply_fix
from wizard.plan import Plan
from wizard.validation.plan_spec import spec_from_plan
from wizard.validation.spec import ValidationSpec

pytest.importorskip("torch")

OWN_ATTENTION = '''\
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention, apply_rotary_pos_emb


class MineConfig(Qwen2Config):
    model_type = "mine"


class MineAttention(Qwen2Attention):
    """Calls the kernel itself, as many a model on the hub does."""

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **_):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            projection(hidden_states).view(shape).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)), None


class MineForCausalLM(Qwen2ForCausalLM):
    config_class = MineConfig

    def __init__(self, config):
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn = MineAttention(config, index)
'''


def observed(run: Finished) -> Observed:
    assert run.verdict.outcome == "passed", run.verdict
    found = Observed()
    for event in run.events:
        found.feed(event)
    return found


def test_ranks_that_do_not_share_gradients(make_spec: Callable[..., ValidationSpec], tmp_path: Path):
    """Two ranks train a model each, as after a forgotten DDP or a process group of one: both runs pass."""
    shared = {"data_shards": 2, "param_dtype": "fp32"}
    alone = make_spec(strategy="none", world_size=1, **shared)
    forgotten = make_spec(strategy="none", world_size=2, **shared)
    for name in ("alone", "apart", "ddp"):
        (tmp_path / name).mkdir()
    before = observed(finish(alone, tmp_path / "alone"))
    apart = differences(DDP, forgotten, observed(finish(forgotten, tmp_path / "apart")), ONE_DEVICE, before)
    assert apart
    assert diagnose(apart[0], Plan()).cause == "gradients-not-synchronised", apart
    right = make_spec(strategy="ddp", world_size=2, **shared)
    assert differences(DDP, right, observed(finish(right, tmp_path / "ddp")), ONE_DEVICE, before) == []


def test_attention_of_the_models_own_under_ulysses(model: Path, tmp_path: Path):
    plan = plan_of(with_own_code(model, OWN_ATTENTION), ulysses_size=2, param_dtype="fp32")
    plan = consenting(plan)
    specs = {rung.name: rung.spec for rung in ladder(spec_from_plan(plan, gpus=0, world_size=2, tokens=128))}
    whole, shared = specs[FSDP], specs[ULYSSES]
    assert whole is not None
    assert shared is not None
    (tmp_path / "whole").mkdir()
    (tmp_path / "shared").mkdir()
    before = observed(finish(whole, tmp_path / "whole"))
    apart = differences(ULYSSES, shared, observed(finish(shared, tmp_path / "shared")), FSDP, before)
    assert apart
    found = diagnose(apart[0], plan)
    assert found.cause == "ulysses-changes-result", apart
    assert apply_fix(plan, found.fixes[0]).actor.ulysses_size == 1
