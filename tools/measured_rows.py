"""Measured configurations as the predictor sees them: architecture, Plan, and the replayed ledger of each row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measure_cases import Case, from_dict, held_out

from wizard.facts import Architecture, LayerClass, Machine, ModuleGroup
from wizard.memory.ledger import Ledger
from wizard.memory.replay import actor_update, log_prob
from wizard.memory.roles import Exact, log_prob_step, role_shape, update_step
from wizard.plan import Algorithm, Fsdp, Model, Plan, Rollout

FIRST_CHUNK_ROWS = 256
MEASUREMENTS = Path(__file__).parents[1] / "measurements"
CLASSES = {
    "qwen2": ("Qwen2", "Qwen2DecoderLayer"),
    "qwen3": ("Qwen3", "Qwen3DecoderLayer"),
    "llama": ("Llama", "LlamaDecoderLayer"),
    "gemma3": ("Gemma3", "Gemma3DecoderLayer"),
    "qwen3_moe": ("Qwen3Moe", "Qwen3MoeDecoderLayer"),
}


@dataclass(frozen=True)
class Row:
    """One measured configuration."""

    case: Case
    data: dict[str, Any]
    held_out: bool

    @property
    def measured_bytes(self) -> int:
        """Highest allocated bytes of the measured step."""
        return int(self.data["peak_allocated_bytes"])

    def replay(self) -> Ledger:
        """Predict the row."""
        return replay(self.case)

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.replay().peak.total_bytes / self.measured_bytes - 1


def rows(name: str = "h200.json") -> Iterator[Row]:
    """Yield the rows of a measurement file that ran."""
    later = {case.key for case in held_out()}
    for data in json.loads((MEASUREMENTS / name).read_text())["rows"]:
        if "error" not in data:
            yield Row(from_dict(data["case"]), data, data["key"] in later)


def first_rows() -> Iterator[tuple[Case, dict[str, Any]]]:
    """Yield the rows of the first, smaller measurement (`measurements/h200_first.json`) as cases, with their data.

    Its loss was a Python imitation of flash-attn's kernel with temporaries of its own, `FIRST_CHUNK_ROWS` at a time.
    """
    for data in json.loads((MEASUREMENTS / "h200_first.json").read_text())["rows"]:
        names = ("layers", "hidden", "heads", "kv_heads", "intermediate", "vocab", "tied", "world_size", "strategy")
        common = {name: data[name] for name in (*names, "tokens", "micro_batches", "gradient_checkpointing", "no_sync")}
        entropy = "eager" if data["entropy"] else "none"
        head_dim = data["hidden"] // data["heads"]
        yield Case(**common, head_dim=head_dim, loss=data["loss"], entropy=entropy), data


def replay(case: Case, loss_chunk_rows: int = 0) -> Ledger:
    """Return the predicted ledger of a case, through a Plan as the product makes it.

    Args:
        loss_chunk_rows: rows an imitation of flash-attn's cross entropy handled at once; 0 is the kernel itself.
    """
    plan = plan_of(case)
    exact = Exact(case.tokens, case.micro_batches, case.loss, case.entropy)  # type: ignore[arg-type]
    if case.mode == "log_prob":
        step = exact.applied(plan, log_prob_step(plan, "actor"))
        return log_prob(role_shape(plan, "actor", step.tokens), step)
    role = "critic" if case.mode == "value" else "actor"
    exact = Exact(case.tokens, case.micro_batches) if role == "critic" else exact
    step = replace(exact.applied(plan, update_step(plan, role)), loss_chunk_rows=loss_chunk_rows)  # type: ignore[arg-type]
    return actor_update(role_shape(plan, role, step.tokens), step)  # type: ignore[arg-type]


def plan_of(case: Case) -> Plan:
    """Return the Plan that runs a case."""
    return Plan(
        machine=Machine(gpus_per_node=case.world_size),
        architecture=architecture_of(case),
        algorithm=Algorithm(name="ppo" if case.mode == "value" else "grpo"),
        model=Model(
            attention="sdpa" if case.packed_mask else "flash_attention_2",
            gradient_checkpointing=case.gradient_checkpointing,
            activation_offload=case.activation_offload,
            liger=case.liger,
            lora_rank=case.lora_rank,
        ),
        actor=Fsdp(
            strategy=case.strategy,  # type: ignore[arg-type]
            wrap_classes=case.wrap_classes,
            master_dtype=case.master_dtype,  # type: ignore[arg-type]
            param_dtype=case.param_dtype,  # type: ignore[arg-type]
            reduce_dtype=case.reduce_dtype,  # type: ignore[arg-type]
            fsdp_size=case.fsdp_size,
            ulysses_size=case.ulysses,
            reshard_after_forward=case.reshard_after_forward,
            offload_policy=case.offload_policy,
            no_sync=case.no_sync,
            entropy_checkpointing=case.entropy_checkpointing,
            # A measured log-prob pass had no optimizer state on the GPU.
            optimizer_offload=case.mode == "log_prob",
        ),
        rollout=Rollout(temperature=case.temperature),
    )


def architecture_of(case: Case) -> Architecture:
    """Return the architecture of a case's shape, written down by hand from transformers' modules."""
    family, layer_class = CLASSES[case.family]
    hidden, query, key = case.hidden, case.heads * case.head_dim, case.kv_heads * case.head_dim
    bias = case.family == "qwen2"
    projections = hidden * query + bias * query, hidden * key + bias * key
    attention = [
        _group("q_proj", "Linear", 1, projections[0]),
        _group("k_proj", "Linear", 2, projections[1]),
        _group("o_proj", "Linear", 1, hidden * query),
    ]
    if case.family in ("qwen3", "qwen3_moe", "gemma3"):
        attention.append(_group("q_norm", f"{family}RMSNorm", 2, case.head_dim))
    mlp = [_group("gate_proj", "Linear", 3, hidden * case.intermediate)]
    if case.experts:
        mlp = [
            _group("experts", f"{family}Experts", 1, case.experts * 3 * hidden * case.expert_intermediate),
            _group("gate", f"{family}TopKRouter", 1, case.experts * hidden),
        ]
    norms = 4 if case.family == "gemma3" else 2
    layer = _group(
        *("0", layer_class, case.layers, 0),
        _group("self_attn", f"{family}Attention", 1, 0, *attention),
        _group("mlp", f"{family}MLP", 1, 0, *mlp),
        _group("input_layernorm", f"{family}RMSNorm", norms, hidden),
    )
    embedding = case.vocab * hidden
    model = _group(
        *("model", f"{family}Model", 1, 0),
        _group("embed_tokens", "Embedding", 1, embedding),
        _group("layers", "ModuleList", 1, 0, layer),
        _group("norm", f"{family}RMSNorm", 1, hidden),
    )
    own = 0 if case.tied else embedding
    head = ModuleGroup("lm_head", "Linear", 1, own, own, (), embedding - own, True)
    root = _group("", f"{family}ForCausalLM", 1, 0, model, head)
    idle = max(0, case.experts - case.experts_per_token) * 3 * hidden * case.expert_intermediate * case.layers
    return Architecture(
        model_type={"gemma3": "gemma3_text"}.get(case.family, case.family),
        class_name=root.class_name,
        parameters=root.parameters,
        active_parameters=root.parameters - idle,
        tied_embeddings=case.tied,
        num_layers=case.layers,
        hidden_size=hidden,
        intermediate_size=case.intermediate,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        head_dim=case.head_dim,
        vocab_size=case.vocab,
        max_position_embeddings=32768,
        dtype="bfloat16",
        no_split_modules=(layer_class,),
        layer_classes=(
            LayerClass(layer_class, case.layers, layer.parameters * case.layers, layer.parameters, "block", True, True),
        ),
        modules=root,
        largest_parameter=max(embedding, hidden * case.intermediate),
        num_experts=case.experts,
        num_experts_per_token=case.experts_per_token,
        moe_intermediate_size=case.expert_intermediate,
    )


def _group(name: str, class_name: str, repeat: int, own: int, *children: ModuleGroup) -> ModuleGroup:
    parameters = own + sum(child.parameters * child.repeat for child in children)
    return ModuleGroup(name, class_name, repeat, parameters, own, children, has_weight=bool(own))
