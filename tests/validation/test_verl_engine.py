"""verl's own FSDP engine on two gloo ranks, against torch's engine on the same weights and data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validation.conftest import Finished, finish
from wizard.validation.spec import ValidationSpec

pytest.importorskip("torch")
pytest.importorskip("verl", reason="needs verl in this interpreter")
pytestmark = pytest.mark.verl
Specs = Callable[..., ValidationSpec]

ACTOR = "actor_rollout_ref.actor"


def overrides(strategy: str, **more: Any) -> dict[str, Any]:
    """What a generated run.yaml holds for the actor, with what a CPU needs."""
    return {
        f"{ACTOR}.strategy": strategy,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.fsdp_config.use_torch_compile": False,
        "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.rollout.name": "sglang",
        **more,
    }


@pytest.fixture(scope="module")
def torchs(make_spec: Specs, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finish(make_spec(), tmp_path_factory.mktemp("torch"))


@pytest.mark.parametrize(("strategy", "units"), [("fsdp2", 7), ("fsdp", 5)])
def test_passes_with_the_loss_and_gradient_of_torchs_engine(
    make_spec: Specs, torchs: Finished, tmp_path: Path, strategy: str, units: int
):
    """Units as torch counts them: fsdp2 also shards embedding and head on their own (untied), fsdp does not."""
    spec = make_spec(
        engine="verl", strategy=strategy, verl_overrides=overrides(strategy), expected_units=units, benchmark_runs=1
    )
    found = finish(spec, tmp_path)
    assert found.verdict.outcome == "passed", found.verdict.sentence + (found.folder / "log.txt").read_text()[-3000:]
    assert found.metric("fsdp_units") == units
    assert found.metric("loss") == pytest.approx(torchs.metric("loss"), rel=2e-3)
    assert found.metric("gradient_norm") == pytest.approx(torchs.metric("gradient_norm"), rel=2e-2)
    assert found.metric("parity_relative_difference") <= found.metric("parity_tolerance")
    assert found.metric("on_meta_device", rank=1) is True
    assert found.metric("step_seconds") > 0


def test_wrong_class_is_told_by_verl_itself(make_spec: Specs, tmp_path: Path):
    names = {f"{ACTOR}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap": ["qwen2decoderlayer"]}
    found = finish(make_spec(engine="verl", verl_overrides=overrides("fsdp2", **names)), tmp_path)
    assert (found.verdict.outcome, found.verdict.step) == ("failed", "wrap"), found.verdict.sentence
    assert "Could not find any of the transformer layer classes" in found.verdict.cause
    assert any("fsdp_utils.py" in frame for frame in found.verdict.failure["frames"])
