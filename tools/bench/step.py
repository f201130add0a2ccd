"""What the validator adds to a training step: its own runs in turns with a bare script of torch's FSDP2."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from tools.bench.results import Result, Spread
from wizard.plan import Plan
from wizard.validation.launcher import Run
from wizard.validation.plan_spec import spec_from_plan
from wizard.validation.spec import ValidationSpec

LIMIT = 1.02
BARE = Path(__file__).with_name("bare_step.py")
CPU_RANKS, CPU_TOKENS, GPU_TOKENS = 2, 256, 8192
SHAPE = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 8192, "hidden_size": 384,
    "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
"""Some 15 million parameters: a step is mostly arithmetic, and on a CPU still over before other work disturbs it."""
GPU_SHAPE = SHAPE | {
    "vocab_size": 152_064, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2,
}  # fmt: skip
"""Qwen2.5-1.5B's, with a head of its own."""


def validation_step(rounds: int = 6, runs: int = 12) -> list[Result]:
    """Measure the step in turns: bare, validator, validator, bare, …; and how long each took from start to end.

    Each run counts with its fastest step: what else the machine does can only add to one.
    """
    gpus = torch.cuda.device_count()
    ranks, tokens = (gpus, GPU_TOKENS) if gpus else (CPU_RANKS, CPU_TOKENS)
    steps: dict[str, list[float]] = {"bare": [], "validator": []}
    whole: dict[str, list[float]] = {"bare": [], "validator": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(GPU_SHAPE if gpus else SHAPE))
        spec = dataclasses.replace(
            spec_from_plan(_plan(folder, tokens), gpus=gpus, world_size=ranks, random_weights=True, tokens=tokens),
            benchmark_runs=runs,
        )
        for number in range(rounds):
            order = ("bare", "validator") if number % 2 == 0 else ("validator", "bare")
            for kind in order:
                started = time.perf_counter()
                steps[kind].append(min(_bare(folder, ranks, tokens, runs) if kind == "bare" else _validator(spec)))
                whole[kind].append(time.perf_counter() - started)
    ours, bare = Spread(steps["validator"]), Spread(steps["bare"])
    where = f"{ranks} ranks, {'nccl' if gpus else 'gloo'}, {tokens} tokens"
    note = f"fastest {min(ours.values):.4f} and {min(bare.values):.4f} s: {min(ours.values) / min(bare.values):.3f}×"
    return [
        Result("validation", f"training step, {where}", ours.median, "s", LIMIT, "bare torchrun script", bare.median,
               len(ours.values), note),
        Result("validation", "all steps, from start to end", Spread(whole["validator"]).median, "s", None,
               "bare torchrun script, which only steps", Spread(whole["bare"]).median, rounds),
    ]  # fmt: skip


def _plan(folder: Path, tokens: int) -> Plan:
    """Return verl's defaults for the model; one sequence as long as the micro-batch."""
    plan = Plan().replace("model.id", str(folder)).replace("actor.strategy", "fsdp2").replace("model.attention", "sdpa")
    return plan.replace("data.max_prompt_length", tokens // 2).replace("data.max_response_length", tokens // 2)


def _validator(spec: ValidationSpec) -> list[float]:
    """Return the seconds of each timed step of one run."""

    async def main(folder: Path) -> list[float]:
        run = await Run.start(spec, folder=folder)
        told = [event async for event in run.events()]
        assert run.verdict is not None
        if run.verdict.outcome != "passed":
            raise RuntimeError(run.verdict.sentence)
        return [event.data["step_seconds"] for event in told if event.rank == 0 and "step_seconds" in event.data]

    with tempfile.TemporaryDirectory() as name:
        return asyncio.run(main(Path(name)))


def _bare(folder: Path, ranks: int, tokens: int, runs: int) -> list[float]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}",
                "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "seconds"
        subprocess.run(
            [*torchrun, str(BARE), str(folder), str(tokens), str(runs), str(out)], check=True, stderr=subprocess.DEVNULL
        )
        return [float(line) for line in out.read_text().split()]
