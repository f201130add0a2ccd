"""verl's own FSDP engine on two gloo ranks, from a Plan, against torch's engine on the same weights and data."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validation.conftest import Finished, finish
from wizard.model.catalog import preset
from wizard.plan import Fsdp, Model, Plan
from wizard.plan_file import FILE_NAME, plan_to_yaml
from wizard.validation.plan_spec import spec_from_plan
from wizard.validation.spec import ValidationSpec

pytest.importorskip("torch")
pytest.importorskip("verl", reason="needs verl in this interpreter")
pytestmark = pytest.mark.verl
Specs = Callable[..., ValidationSpec]

ACTOR = "actor_rollout_ref.actor"


def plan_of(tiny: Path, **actor: Any) -> Plan:
    return Plan(model=Model(id=str(tiny)), architecture=preset("tiny"), actor=Fsdp(**actor))


def verls(plan: Plan, **changes: Any) -> ValidationSpec:
    """The Plan's run on verl's engine, as short as those of `make_spec`."""
    spec = spec_from_plan(plan, gpus=0, world_size=2, tokens=64, engine="verl")
    return dataclasses.replace(spec, sequence_tokens=32, step_limit_seconds=60, **changes)


@pytest.fixture(scope="module")
def torchs(make_spec: Specs, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finish(make_spec(), tmp_path_factory.mktemp("torch"))


@pytest.mark.parametrize(("strategy", "units"), [("fsdp2", 7), ("fsdp", 5)])
def test_passes_with_the_loss_and_gradient_of_torchs_engine(
    tiny: Path, torchs: Finished, tmp_path: Path, strategy: str, units: int
):
    """Units as torch counts them: fsdp2 also shards embedding and head on their own (untied), fsdp does not."""
    found = finish(verls(plan_of(tiny, strategy=strategy), benchmark_runs=1), tmp_path)
    assert found.verdict.outcome == "passed", found.verdict.sentence + (found.folder / "log.txt").read_text()[-3000:]
    assert found.metric("engine") == "FSDPEngineWithLMHead of verl 0.9.1"
    assert found.metric("fsdp_units") == units
    assert found.metric("loss") == pytest.approx(torchs.metric("loss"), rel=2e-3)
    assert found.metric("gradient_norm") == pytest.approx(torchs.metric("gradient_norm"), rel=2e-2)
    assert found.metric("parity_relative_difference") <= found.metric("parity_tolerance")
    assert found.metric("on_meta_device", rank=1) is True
    assert found.metric("step_seconds") > 0


def test_wrong_class_is_told_by_verl_itself(tiny: Path, tmp_path: Path):
    found = finish(verls(plan_of(tiny, wrap_classes=("qwen2decoderlayer",)), benchmark_runs=0), tmp_path)
    assert (found.verdict.outcome, found.verdict.step) == ("failed", "wrap"), found.verdict.sentence
    assert "Could not find any of the transformer layer classes" in found.verdict.cause
    assert any("fsdp_utils.py" in frame for frame in found.verdict.failure["frames"])


def test_verl_reads_what_the_plan_says(tiny: Path):
    """What a machine without GPUs cannot do is said, and changes the configuration as it changes the run."""
    plan = plan_of(tiny, strategy="fsdp", ulysses_size=2, fsdp_size=4, reduce_dtype="bf16", param_offload=True)
    spec = verls(dataclasses.replace(plan, machine=dataclasses.replace(plan.machine, gpus_per_node=8)))
    assert spec.strategy == spec.verl_overrides[f"{ACTOR}.strategy"] == "fsdp"
    assert spec.verl_overrides[f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype"] == "bf16"
    assert spec.verl_overrides[f"{ACTOR}.fsdp_config.param_offload"] is True
    assert spec.ulysses_size == 1
    assert not [key for key in spec.verl_overrides if key.endswith(("ulysses_sequence_parallel_size", "fsdp_size"))]
    assert any("flash attention" in note and "ulysses_size" in note for note in spec.notes)


def validate(plan: Plan, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / FILE_NAME).write_text(plan_to_yaml(plan))
    return subprocess.run(
        [sys.executable, "-m", "wizard", "validate", folder, "--engine", "verl", "--cpu", *options],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip


def test_the_command_runs_it(tiny: Path, tmp_path: Path):
    done = validate(plan_of(tiny), tmp_path, "--json", "--tokens", "64")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr + done.stdout[-3000:]
    assert events[-1]["outcome"] == "passed"
    assert "FSDPEngineWithLMHead of verl 0.9.1" in done.stdout


def test_an_interpreter_without_verl_is_refused(tiny: Path, tmp_path: Path):
    venv.create(tmp_path / "bare", symlinks=True)
    done = validate(plan_of(tiny), tmp_path, "--python", str(tmp_path / "bare/bin/python"))
    assert done.returncode == 2
    assert "has no verl" in done.stderr
    assert "engine torch" in done.stderr
