"""From a Plan to a validation run on the machine at hand."""

from __future__ import annotations

import os
from pathlib import Path

from wizard.model.catalog import preset_config
from wizard.model.consent import check_consent
from wizard.model.errors import ModelError, RemoteCodeConsentNeeded
from wizard.model.tiny import TINY_ID, ensure_tiny
from wizard.model.units import NoUnits, fsdp_units
from wizard.plan import Model, Plan
from wizard.validation.spec import Device, Engine, ValidationSpec
from wizard.validation.verl_plan import engine_overrides

CPU_RANKS = 2
CPU_TOKENS = 256
"""What a laptop gets through in seconds; on GPUs the Plan's own token budget is run."""


def cpu_ranks(nodes: int) -> int:
    """Return how many ranks run where there is no GPU: enough to meet, and at least one a node."""
    return max(CPU_RANKS, nodes)


def spec_from_plan(
    plan: Plan,
    *,
    gpus: int,
    world_size: int | None = None,
    random_weights: bool = False,
    tokens: int | None = None,
    engine: Engine = "torch",
    python: str = "",
) -> ValidationSpec:
    """Return the run that comes closest to the Plan with `gpus` GPUs at hand (0: gloo on the CPU).

    Whatever differs from the Plan is said in the spec's notes.

    Args:
        python: the interpreter that runs it, where it is not the Plan's.

    Raises:
        EngineError: verl's engine is asked for, and the interpreter has none that is known.
        ModelError: the model has no files here and is not in the catalogue.
    """
    notes: list[str] = []
    device: Device = "cuda" if gpus else "cpu"
    ranks = world_size or (min(plan.world_size, gpus) if gpus else CPU_RANKS)
    if ranks != plan.world_size:
        notes.append(f"the Plan has {plan.world_size} ranks, this run {ranks}")
    here = _fitted(plan, device, ranks, engine, notes)
    overrides = engine_overrides(here, device, python) if engine == "verl" else {}
    fsdp = here.actor
    model, config = _model(plan, notes)
    longest = plan.data.longest_sequence
    budget = tokens or (_plan_tokens(plan, longest) if device == "cuda" else CPU_TOKENS)
    if device == "cpu" and tokens is None:
        notes.append(f"on the CPU a micro-batch holds {budget} tokens")
    return ValidationSpec(
        model=model,
        model_config=config,
        world_size=ranks,
        device=device,
        strategy=fsdp.strategy,
        wrap_classes=fsdp.wrap_classes,
        min_num_params=fsdp.min_num_params,
        master_dtype=fsdp.master_dtype,
        param_dtype=fsdp.param_dtype,
        reduce_dtype=fsdp.reduce_dtype,
        buffer_dtype=fsdp.buffer_dtype,
        param_offload=fsdp.param_offload,
        optimizer_offload=fsdp.optimizer_offload,
        offload_policy=fsdp.offload_policy and fsdp.strategy == "fsdp2",
        fsdp_size=fsdp.fsdp_size,
        ulysses_size=fsdp.ulysses_size,
        reshard_after_forward=fsdp.reshard_after_forward,
        forward_prefetch=fsdp.forward_prefetch,
        use_orig_params=fsdp.use_orig_params,
        attention=here.model.attention,
        gradient_checkpointing=plan.model.gradient_checkpointing,
        lora_rank=plan.model.lora_rank,
        lora_alpha=plan.model.lora_alpha,
        trust_remote_code=plan.model.trust_remote_code,
        random_weights=random_weights or not model,
        tokens=budget,
        sequence_tokens=min(longest, budget),
        learning_rate=plan.batches.learning_rate,
        expected_units=_expected_units(here),
        engine=engine,
        verl_overrides=overrides,
        notes=tuple(notes),
    )


def _fitted(plan: Plan, device: Device, ranks: int, engine: Engine, notes: list[str]) -> Plan:
    """Return the Plan with what this machine cannot do replaced by what comes closest."""
    actor, attention = plan.actor, plan.model.attention
    if device == "cpu" and actor.strategy == "fsdp" and engine == "torch":
        plan = plan.replace("actor.strategy", "fsdp2")
        notes.append("torch's fsdp refuses to run without an accelerator, so the same wrap is validated with fsdp2")
    if device == "cpu" and attention == "flash_attention_2":
        plan = plan.replace("model.attention", "sdpa")
        notes.append("flash attention needs a GPU; sdpa stands in for it")
        if engine == "verl" and actor.ulysses_size > 1:
            # Without it verl's ranks attend to their own part of a sequence only, and nothing says so.
            plan = plan.replace("actor.ulysses_size", 1)
            notes.append("verl's Ulysses lives in flash attention, so ulysses_size is 1 here; engine torch runs it")
    if actor.fsdp_size >= ranks != plan.world_size:
        notes.append(f"fsdp_size {actor.fsdp_size} shards over all {ranks} ranks here")
        plan = plan.replace("actor.fsdp_size", -1)
    return plan


def _plan_tokens(plan: Plan, longest: int) -> int:
    if plan.batches.dynamic:
        return plan.batches.max_tokens_per_gpu * plan.actor.ulysses_size
    return plan.batches.micro_batch_size_per_gpu * longest


def _model(plan: Plan, notes: list[str]) -> tuple[str, dict[str, object]]:
    name = os.path.expanduser(plan.model.id)
    if plan.model.id == TINY_ID:
        return str(ensure_tiny(plan.target.python)), {}
    if os.path.isdir(name):
        _check_code(plan.model, Path(name), "")
        return name, {}
    cached = _cached(plan.model.id, plan.model.revision)
    if cached:
        _check_code(plan.model, Path(cached), Path(cached).name)
        return cached, {}
    config = preset_config(plan.model.id)
    if config is None:
        raise ModelError(
            f"model.id = {plan.model.id!r}: its files are not on this machine, so it cannot be validated. Download it "
            f"(hf download {plan.model.id}), give its folder, or validate a preset with random weights."
        )
    notes.append(f"{plan.model.id} is not on this machine: a model of its shape is run with random weights")
    return "", config


def _check_code(model: Model, folder: Path, commit: str) -> None:
    """Make sure that the code which would run is the code that somebody agreed to.

    Raises:
        RemoteCodeConsentNeeded: it is not.
    """
    if model.trust_remote_code:
        try:
            check_consent(model.id, folder, commit, revision=model.revision, trust_remote_code=True)
        except RemoteCodeConsentNeeded:
            raise
        except (ModelError, OSError):
            # The run itself tells what is wrong with the folder.
            return


def _cached(model: str, revision: str) -> str:
    """Return the snapshot folder in the hub's cache if weights are there, else an empty string."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    repository = hub / f"models--{model.replace('/', '--')}"
    try:
        commit = revision or (repository / "refs" / "main").read_text(encoding="ascii").strip()
        folder = repository / "snapshots" / commit
        return str(folder) if any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")) else ""
    except OSError:
        return ""


def _expected_units(plan: Plan) -> int:
    """Return the units the wrap policy should make; 0 where it is not known or verl would stop anyway."""
    if plan.architecture is None or plan.model.lora_rank:
        return 0
    try:
        units = fsdp_units(plan.architecture, plan.actor)
    except NoUnits:
        return 0
    return sum(unit.count for unit in units)
