"""What is so, as against what the person decides: the machine and the model's architecture.

Standard library only: the inspector builds these inside the target interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Interconnect = Literal["nvlink", "pcie", "unknown"]


@dataclass(frozen=True)
class Machine:
    """The machine a run is planned for: probed, or described by the person. Nodes are equal, as verl demands."""

    nodes: int = 1
    gpus_per_node: int = 0
    """0: no GPU, gloo on the CPU."""
    gpu_name: str = ""
    gpu_memory_bytes: int = 0
    """Total memory of the smallest GPU."""
    gpu_free_bytes: int = 0
    """Free memory of the fullest GPU; equal to the total for a described machine."""
    compute_capability: str = ""
    """`major.minor`, as in `9.0`; empty when unknown."""
    interconnect: Interconnect = "unknown"
    host_memory_bytes: int = 0
    """Memory one node's processes may use: the cgroup limit, else MemTotal; 0 when unknown."""
    host_cpus: int = 0
    """CPUs one node's processes may use; 0 when unknown."""

    @property
    def world_size(self) -> int:
        """Number of ranks: nodes × GPUs a node."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class ModuleGroup:
    """`repeat` structurally identical sibling modules of a model, told once.

    `parameters` and `own_parameters` are of ONE of the siblings, in elements; a tied parameter is counted where
    it is first met. `own_parameters` are those not held by a child.
    """

    name: str
    """Attribute name of the first sibling, as in `layers` children `0`."""
    class_name: str
    repeat: int
    parameters: int
    own_parameters: int
    children: tuple[ModuleGroup, ...] = ()
    reused_parameters: int = 0
    """Elements this subtree holds that were first met outside it, such as a tied head's weight."""
    has_weight: bool = False
    """Whether the module has an attribute `weight`: verl's fsdp2 wraps `embed_tokens` and `lm_head` only then."""
    bases: tuple[str, ...] = ()
    """Base classes that matter to a wrap policy: torch's containers and `Embedding`, and classes also in the model."""

    @property
    def numel(self) -> int:
        """Elements `sum(p.numel() for p in module.parameters())` gives for one of the siblings."""
        return self.parameters + self.reused_parameters


@dataclass(frozen=True)
class LayerClass:
    """A module class of the model that a wrap policy could name."""

    name: str
    count: int
    parameters: int
    """Elements in all instances together, each parameter once."""
    largest_parameters: int
    """Elements in the largest instance: the FSDP unit it would become."""
    kind: Literal["block", "embedding", "head", "expert", "other"]
    in_no_split_modules: bool
    detected: bool
    """Whether the structural detector picks it as a repeated block."""


@dataclass(frozen=True)
class Architecture:
    """A model as built on the meta device from its config. Sizes are elements, tied parameters counted once."""

    model_type: str
    class_name: str
    parameters: int
    active_parameters: int
    """Parameters one token passes through; equal to `parameters` without mixture of experts."""
    tied_embeddings: bool
    """The config's own `tie_word_embeddings`, which is what verl decides by."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    dtype: str
    """The checkpoint's dtype by its config, as in `bfloat16`."""
    no_split_modules: tuple[str, ...] | None
    layer_classes: tuple[LayerClass, ...]
    modules: ModuleGroup
    largest_parameter: int
    """Elements of the largest single parameter tensor."""
    saved_bytes_per_token: int = 0
    """Bytes one repeated block keeps for backward per token, bf16 compute, no checkpointing; 0 when not traced."""
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    has_vision: bool = False
    remote_code: bool = False
    """Whether the config names code of its own (`auto_map`)."""
    kv_bytes_per_token: int = 0
    """Bytes of KV cache one token takes in all layers together at bf16, before tensor parallelism."""
