"""Validation on a real GPU: a 0.5B- and a 7B-shaped model, random weights, fsdp and fsdp2.

Peaks and times go to `validation_<strategy>_<model>.json` in the folder that VERL_WIZARD_MEASUREMENTS names.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.validation.conftest import Finished, finish
from wizard.model.catalog import preset, preset_config
from wizard.plan import Fsdp, Model, Plan
from wizard.validation.plan_spec import spec_from_plan
from wizard.validation.spec import ValidationSpec

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.timeout(400),
]
MODELS = {"0.5b": ("Qwen/Qwen2.5-0.5B-Instruct", 8192), "7b": ("Qwen/Qwen2.5-7B-Instruct", 4096)}
MASTER = {"0.5b": "fp32", "7b": "bf16"}
"""In fp32, a step of 7.6 billion parameters takes 20 bytes each on one GPU, 142 GiB: more than an H200 has."""
STATE_BYTES = {"fp32": 16, "bf16": 8}
"""Of one parameter in the step: master, gradient, two moments; AdamW's foreach temporary comes on top."""


def record(name: str, found: Finished, spec: ValidationSpec) -> None:
    """Keep what was measured, where a folder for it is given."""
    folder = os.environ.get("VERL_WIZARD_MEASUREMENTS")
    if not folder:
        return
    values: dict[str, Any] = {}
    for event in found.events:
        if event.kind == "metric" and event.rank == 0:
            values.update(event.data)
    data = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": spec.model_config,
        "strategy": spec.strategy,
        "tokens": spec.tokens,
        "outcome": found.verdict.outcome,
        "seconds": {e.step: e.data["seconds"] for e in found.events if e.kind == "step_finished"},
        "memory": [e.data for e in found.events if e.kind == "memory"],
        "values": values,
    }
    Path(folder, f"validation_{name}.json").write_text(json.dumps(data, indent=1), encoding="utf-8")


@pytest.mark.parametrize("strategy", ["fsdp2", "fsdp"])
@pytest.mark.parametrize("size", ["0.5b", "7b"])
def test_validation(strategy: Any, size: str, tmp_path: Path):
    model, tokens = MODELS[size]
    config, architecture = preset_config(model), preset(model)
    assert config is not None
    assert architecture is not None
    spec = ValidationSpec(
        model="", model_config=config, world_size=1, device="cuda", strategy=strategy, random_weights=True,
        tokens=tokens, sequence_tokens=tokens, attention="sdpa", optimizer_offload=size == "0.5b",
        param_offload=size == "0.5b", master_dtype=MASTER[size],
    )  # fmt: skip
    found = finish(spec, tmp_path)
    record(f"{strategy}_{size}", found, spec)
    assert found.verdict.outcome == "passed", f"{found.verdict.sentence}\n{(tmp_path / 'log.txt').read_text()[-3000:]}"
    assert found.metric("parameters") == architecture.parameters
    peaks = {e.data["phase"]: e.data["peak_allocated_bytes"] for e in found.events if e.kind == "memory"}
    assert peaks["actor_update"] > STATE_BYTES[spec.master_dtype] * architecture.parameters
    assert 0 < found.metric("mfu") < 1
    if size == "0.5b":
        assert found.metric("offload_freed_bytes") > 0.9 * 12 * architecture.parameters


def test_fp16_and_offload_policy(tmp_path: Path):
    """Compute in fp16, and parameters, gradients and AdamW on the host all the time."""
    config = preset_config(MODELS["0.5b"][0])
    assert config is not None
    spec = ValidationSpec(
        model="", model_config=config, world_size=1, device="cuda", strategy="fsdp2", random_weights=True,
        tokens=2048, sequence_tokens=2048, attention="sdpa", param_dtype="fp16", offload_policy=True, benchmark_runs=1,
    )  # fmt: skip
    found = finish(spec, tmp_path)
    record("fsdp2_offload_policy_0.5b", found, spec)
    assert found.verdict.outcome == "passed", found.verdict.sentence
    peaks = {e.data["phase"]: e.data["peak_allocated_bytes"] for e in found.events if e.kind == "memory"}
    assert peaks["actor_update"] < 8 * found.metric("parameters")


@pytest.mark.verl
@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="needs verl in this interpreter")
@pytest.mark.parametrize("strategy", ["fsdp2", "fsdp"])
def test_verls_own_engine_agrees_with_torchs(strategy: Any, tmp_path: Path):
    """The same Plan on both engines: the same random weights and tokens, with sdpa."""
    name = MODELS["0.5b"][0]
    plan = Plan(model=Model(id=name, attention="sdpa"), architecture=preset(name), actor=Fsdp(strategy=strategy))
    runs = {}
    for engine in ("torch", "verl"):
        spec = spec_from_plan(plan, gpus=1, tokens=4096, random_weights=True, engine=engine)
        (tmp_path / engine).mkdir()
        runs[engine] = finish(spec, tmp_path / engine)
        record(f"{strategy}_0.5b_engine_{engine}", runs[engine], spec)
        log = (tmp_path / engine / "log.txt").read_text()[-3000:]
        assert runs[engine].verdict.outcome == "passed", f"{runs[engine].verdict.sentence}\n{log}"
    ours, verls = runs["torch"], runs["verl"]
    assert verls.metric("loss") == pytest.approx(ours.metric("loss"), rel=5e-3)
    assert verls.metric("gradient_norm") == pytest.approx(ours.metric("gradient_norm"), rel=5e-2)
