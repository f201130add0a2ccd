"""Faults that only a GPU has: its memory by phase, a GPU that is taken, and torch's fsdp."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Bench, plan_of
from wizard.facts import Machine
from wizard.model.catalog import preset
from wizard.plan import Batches, Model, Plan

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.fault,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
VOCABULARY = 151_936


def machine() -> Machine:
    total = torch.cuda.get_device_properties(0).total_memory
    return Machine(gpus_per_node=1, gpu_memory_bytes=total, gpu_free_bytes=total)


def test_logits_that_do_not_fit(bench: Bench):
    """Tokens for which the logits in bf16, in fp32 and their softmax take 10 bytes each: more than the GPU has."""
    tokens = int(1.05 * torch.cuda.get_device_properties(0).total_memory / (10 * VOCABULARY)) // 256 * 256
    name = "Qwen/Qwen2.5-0.5B-Instruct"
    plan = Plan(
        machine=machine(), model=Model(id=name, attention="sdpa"), architecture=preset(name),
        batches=Batches(max_tokens_per_gpu=tokens),
    )  # fmt: skip
    found, fixed = bench.is_cured_by_its_first_fix("gpu-oom-loss", plan, gpus=1, tokens=None)
    memory = found.verdict.failure["memory"]
    assert 0 < memory["allocated_bytes"] <= memory["reserved_bytes"] < memory["total_bytes"]
    assert fixed.batches.max_tokens_per_gpu < tokens


@pytest.fixture
def taken() -> Iterator[subprocess.Popen[bytes]]:
    """Another process that leaves 600 MB of the GPU: a CUDA context fits, and not much more."""
    code = (
        "import torch\ntorch.zeros(1, device='cuda')\nfree = torch.cuda.mem_get_info()[0]\n"
        "held = torch.empty(free - (600 << 20), dtype=torch.uint8, device='cuda')\nprint('held', flush=True)\ninput()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()


def test_gpu_that_another_process_has_filled(bench: Bench, tiny: Path, taken: subprocess.Popen[bytes]):
    plan = dataclasses.replace(plan_of(tiny), machine=machine())
    found = bench.run(plan, gpus=1)
    assert found.diagnosis is not None
    assert found.diagnosis.cause == "gpu-oom-nccl", found.verdict
    assert "other processes" in found.diagnosis.what
    taken.kill()
    taken.wait()
    bench.passes(plan, gpus=1)


def test_frozen_and_trained_weights_in_one_unit_of_fsdp(bench: Bench, tiny: Path):
    plan = plan_of(tiny, strategy="fsdp", min_num_params=10_000)
    plan = dataclasses.replace(plan, model=dataclasses.replace(plan.model, lora_rank=4))
    _, fixed = bench.is_cured_by_its_first_fix("unit-mixed-grad", plan, gpus=1)
    assert fixed.actor.min_num_params == 0
