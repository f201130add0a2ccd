"""What a validation run is to do: one JSON file that every rank reads. Standard library only."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

Device = Literal["cuda", "cpu"]
Strategy = Literal["none", "ddp", "fsdp", "fsdp2"]
Engine = Literal["torch", "verl"]

STEPS = (
    "environment",
    "load",
    "wrap",
    "forward",
    "backward",
    "optimizer",
    "benchmark",
    "offload",
    "parity",
)
"""All steps in order; a run leaves out those that its spec gives nothing to do."""


class RankSpec(Protocol):
    """What launchers read of a spec; a dataclass with more in it for its worker."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    worker: ClassVar[str]
    """Module whose `main([spec file, folder])` is a rank."""

    @property
    def world_size(self) -> int: ...

    @property
    def device(self) -> Device: ...

    @property
    def step_limit_seconds(self) -> float: ...


@dataclass(frozen=True)
class ValidationSpec:
    """One run. Sizes are per rank; dtypes are the Plan's names (`fp32`, `bf16`, `fp16`)."""

    worker: ClassVar[str] = "wizard.validation.worker"

    model: str
    """Folder of the model; empty builds `model_config`."""
    model_config: dict[str, Any]
    """Entries of a config.json to build with random weights where no folder is given."""
    world_size: int
    device: Device
    strategy: Strategy
    """How the model is spread; `none` and `ddp` are the lower rungs of the debugging ladder."""
    wrap_classes: tuple[str, ...] = ()
    """Names as verl reads them; empty leaves the choice to the model's `_no_split_modules`."""
    min_num_params: int = 0
    master_dtype: str = "fp32"
    param_dtype: str = "bf16"
    reduce_dtype: str = "fp32"
    buffer_dtype: str = "fp32"
    param_offload: bool = False
    optimizer_offload: bool = False
    offload_policy: bool = False
    fsdp_size: int = -1
    ulysses_size: int = 1
    reshard_after_forward: bool = True
    forward_prefetch: bool = False
    use_orig_params: bool = False
    attention: str = "sdpa"
    gradient_checkpointing: bool = True
    lora_rank: int = 0
    lora_alpha: int = 16
    trust_remote_code: bool = False
    random_weights: bool = False
    tokens: int = 256
    """Tokens of one micro-batch on one data-parallel rank."""
    sequence_tokens: int = 256
    """Length of the sequences packed into it."""
    micro_batches: int = 1
    data_shards: int = 0
    """Different micro-batches that the data-parallel ranks share out, so that runs of any world size see the same
    data; 0 gives every rank the same one."""
    learning_rate: float = 1e-6
    expected_units: int = 0
    """FSDP units the wrap policy should make, the root included; 0 when it is not known."""
    step_limit_seconds: float = 300.0
    benchmark_runs: int = 3
    seed: int = 0
    engine: Engine = "torch"
    """Whose code builds, wraps and steps: torch's FSDP used as verl does, or verl's own engine class."""
    verl_overrides: dict[str, Any] = field(default_factory=dict)
    """`{verl key: value}` of the generated `run.yaml`, for verl's engine, with what differs on this machine."""
    notes: tuple[str, ...] = ()
    """What differs between this run and the Plan, said at the start."""

    @property
    def steps(self) -> tuple[str, ...]:
        """Steps this run consists of."""
        left_out = set()
        if not (self.param_offload or self.optimizer_offload):
            left_out.add("offload")
        if self.benchmark_runs <= 0:
            left_out.add("benchmark")
        if self.data_shards:
            # The ladder compares with the run of the rung before.
            left_out.add("parity")
        return tuple(step for step in STEPS if step not in left_out)


def write_spec(spec: RankSpec, path: Path) -> None:
    """Write the spec as JSON."""
    path.write_text(json.dumps(dataclasses.asdict(spec), indent=1), encoding="utf-8")


def read_spec(path: Path) -> ValidationSpec:
    """Read a spec that `write_spec` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for name in ("wrap_classes", "notes"):
        data[name] = tuple(data[name])
    return ValidationSpec(**data)
