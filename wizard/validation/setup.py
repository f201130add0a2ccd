"""Process group, device and meshes, as verl makes them. Target interpreter."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from wizard.validation.reporter import Reporter
from wizard.validation.spec import ValidationSpec

COLLECTIVE_GRACE_SECONDS = 30.0
"""How much later than the step's limit a collective gives up by itself."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Context:
    """What every step of a rank shares."""

    spec: ValidationSpec
    reporter: Reporter
    device: torch.device
    mesh: DeviceMesh
    """Sharding mesh: `fsdp`, or `ddp` × `fsdp` for HSDP."""
    sequence_group: Any
    """Ranks that share a sequence; None without Ulysses."""
    parameters: int = 0
    """Elements of the whole model, once it is loaded."""
    watch: Any = None
    """The `FirstNonFinite` of the step's forward, which also sees its backward."""

    @property
    def rank(self) -> int:
        """This rank of the world."""
        return dist.get_rank()

    @property
    def data_ranks(self) -> int:
        """Ranks, or groups of ranks with Ulysses, that each see data of their own."""
        return dist.get_world_size() // self.spec.ulysses_size

    @property
    def loads_weights(self) -> bool:
        """Whether this rank reads real weights: verl 0.9.1 `utils/fsdp_utils.py`, `get_init_weight_context_manager`."""
        if self.spec.strategy in ("none", "ddp"):
            return True
        coordinate = self.mesh.get_coordinate()
        assert coordinate is not None
        return coordinate[-1] == 0


class MeshError(ValueError):
    """A shard or sequence size that does not divide the world; the message is for the person."""


def start(spec: ValidationSpec, reporter: Reporter) -> Context:
    """Join the process group and prove that a collective works.

    Raises:
        MeshError: a size does not divide the world size; verl 0.9.1 lets some of these pass and then hangs.
    """
    device = _device(spec)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        # The wizard's own limit comes first: it then asks every rank for its stack.
        timeout=timedelta(seconds=spec.step_limit_seconds + COLLECTIVE_GRACE_SECONDS),
        device_id=device if device.type == "cuda" else None,
    )
    world = dist.get_world_size()
    _check_sizes(spec, world)
    mesh = _mesh(spec.fsdp_size, world, device.type)
    sequence_group = None
    if spec.ulysses_size > 1:
        shape = (world // spec.ulysses_size, spec.ulysses_size)
        sequence_group = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "sp"))["sp"].get_group()
    _prove_collective(device, world)
    reporter.metric(
        world_size=world,
        torch_version=torch.__version__,
        device=_device_name(device),
        backend=dist.get_backend(),
        pid=os.getpid(),
    )
    return Context(spec, reporter, device, mesh, sequence_group)


def _device(spec: ValidationSpec) -> torch.device:
    if spec.device == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // max(1, spec.world_size)))
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _check_sizes(spec: ValidationSpec, world: int) -> None:
    if spec.ulysses_size > world or world % spec.ulysses_size:
        raise MeshError(
            f"ulysses_size {spec.ulysses_size} does not divide the world size {world}: verl's device mesh leaves ranks "
            "out and then hangs. Choose a size that divides it."
        )
    if spec.fsdp_size == 0 or (0 < spec.fsdp_size < world and world % spec.fsdp_size):
        raise MeshError(
            f"fsdp_size {spec.fsdp_size} does not divide the world size {world}: verl's device mesh leaves ranks out "
            "and then hangs. Choose a divisor, or -1 for all ranks."
        )


def _mesh(fsdp_size: int, world: int, device_type: str) -> DeviceMesh:
    """verl 0.9.1 `workers/engine/fsdp/utils.py`, `create_device_mesh`."""
    if fsdp_size < 0 or fsdp_size >= world:
        return init_device_mesh(device_type, (world,), mesh_dim_names=("fsdp",))
    return init_device_mesh(device_type, (world // fsdp_size, fsdp_size), mesh_dim_names=("ddp", "fsdp"))


def _prove_collective(device: torch.device, world: int) -> None:
    total = torch.tensor([dist.get_rank() + 1.0], device=device)
    dist.all_reduce(total)
    wanted = world * (world + 1) / 2
    if total.item() != wanted:
        raise RuntimeError(f"all-reduce over {world} ranks gave {total.item()} instead of {wanted}")
