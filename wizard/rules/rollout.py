"""The rollout engine: parallel sizes, lengths, memory."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.findings import Fix, Severity, Stage
from wizard.rules.case import Case
from wizard.rules.registry import Found, rule, set_key
from wizard.verl.keys import ROLLOUT

ENGINES = ("vllm", "sglang", "trtllm")
WEIGHT_BYTES = 2
MARGIN = 0.02
"""Of the GPU that CUDA contexts take besides what is seen as used."""

TP = f"{ROLLOUT}.tensor_model_parallel_size"
UTILISATION = f"{ROLLOUT}.gpu_memory_utilization"
LENGTH = f"{ROLLOUT}.max_model_len"


def _replica(case: Case) -> int:
    sizes = [
        max(1, case.number(f"{ROLLOUT}.{name}", 1)) for name in ("data_parallel_size", "pipeline_model_parallel_size")
    ]
    return max(1, case.number(TP, 1)) * sizes[0] * sizes[1]


@rule(
    "rollout-name", "the inference engine is named", Severity.ERROR, Stage.WORKERS, (f"{ROLLOUT}.name",),
    "verl 0.9.1 trainer/config/rollout/rollout.yaml (???), workers/rollout/base.py",
)  # fmt: skip
def rollout_name(case: Case) -> Iterator[Found]:
    """verl has no default for it."""
    key = f"{ROLLOUT}.name"
    value = case.get(key)
    if value is None:
        yield Found(key, "verl has no default for it and stops.", (set_key(key, "vllm"),))
    elif value not in ENGINES and case.config.schema.minor >= (0, 8):
        yield Found(key, "verl has no such inference engine.", (set_key(key, "vllm"),))


@rule(
    "rollout-mode", "the rollout runs asynchronously", Severity.ERROR, Stage.WORKERS, (f"{ROLLOUT}.mode",),
    "verl 0.9.1 workers/config/rollout.py, workers/rollout/base.py:106",
)  # fmt: skip
def rollout_mode(case: Case) -> Iterator[Found]:
    """verl 0.7 dropped the synchronous engines; `sync` composes and dies in the dataclass."""
    key = f"{ROLLOUT}.mode"
    if case.config.schema.minor >= (0, 7) and case.get(key) not in (None, "async"):
        yield Found(key, "only async is left since verl 0.7; workers stop.", (set_key(key, "async"),))


@rule(
    "rollout-tensor-parallel", "the rollout's replicas divide the GPUs", Severity.ERROR, Stage.WORKERS, (TP,),
    "verl 0.9.1 workers/engine_workers.py:655-661; trainer/config/rollout/rollout.yaml (default 2)",
)  # fmt: skip
def rollout_tensor_parallel(case: Case) -> Iterator[Found]:
    """verl's default is 2, on one GPU too."""
    world, replica = case.rollout_ranks, _replica(case)
    if world and world % replica:
        others = replica // max(1, case.number(TP, 1))
        sizes = [size for size in range(1, world + 1) if world % (size * others) == 0 and size <= case.number(TP, 1)]
        fixes = (set_key(TP, sizes[-1]),) if sizes else ()
        yield Found(TP, f"{world} GPUs do not divide into replicas of {replica}: workers stop.", fixes)


@rule(
    "rollout-heads", "the attention heads divide by the tensor parallel size", Severity.ERROR, Stage.ROLLOUT, (TP,),
    "vLLM 0.24 config/model.py (verify_with_parallel_config)",
)  # fmt: skip
def rollout_heads(case: Case) -> Iterator[Found]:
    """The inference engine splits heads over the GPUs of a replica."""
    architecture, size = case.facts.architecture, case.number(TP, 1)
    if architecture is None or size < 1 or not architecture.num_attention_heads:
        return
    heads = architecture.num_attention_heads
    if heads % size:
        smaller = max(s for s in range(1, size) if heads % s == 0 and case.rollout_ranks % s == 0)
        yield Found(TP, f"{heads} attention heads do not divide by {size}: the engine stops.", (set_key(TP, smaller),))


@rule(
    "rollout-pipeline", "the rollout has no pipeline parallelism", Severity.ERROR, Stage.WORKERS,
    (f"{ROLLOUT}.pipeline_model_parallel_size",), "verl 0.9.1 workers/config/rollout.py:319-323",
)  # fmt: skip
def rollout_pipeline(case: Case) -> Iterator[Found]:
    """vLLM, SGLang and TensorRT-LLM rollouts refuse it."""
    key = f"{ROLLOUT}.pipeline_model_parallel_size"
    if case.number(key, 1) > 1 and case.get(f"{ROLLOUT}.name") in ("vllm", "sglang", "trtllm"):
        yield Found(key, "verl's rollout supports no pipeline parallelism.", (set_key(key, 1),))


@rule(
    "rollout-length", "the engine accepts the longest sequence", Severity.ERROR, Stage.ROLLOUT, (LENGTH,),
    "verl 0.9.1 workers/rollout/vllm_rollout/vllm_async_server.py:593-612 and 1102-1111, sglang_rollout/"
    "async_sglang_server.py:167-172",
)  # fmt: skip
def rollout_length(case: Case) -> Iterator[Found]:
    """Longer than the model's own context, the server refuses to start. Shorter than prompt + response, responses are
    cut without a word, and a prompt that leaves no token stops the run. null means the model's whole context, whose
    KV cache may not fit."""
    value, architecture = case.get(LENGTH), case.facts.architecture
    prompt = case.number("data.max_prompt_length")
    context = architecture.max_position_embeddings if architecture else 0
    if context and isinstance(value, int) and value > context:
        fix = set_key(LENGTH, min(context, case.longest or context))
        yield Found(LENGTH, f"the model's own context is {context} tokens: the engine stops.", (fix,))
        return
    limit = value if isinstance(value, int) else context
    if not limit or not case.longest or limit >= case.longest:
        return
    text = f"prompt + response reach {case.longest} tokens, and the engine accepts {limit}: "
    fixes: tuple[Fix, ...] = ()
    if not context or context >= case.longest:
        fixes = (set_key(LENGTH, case.longest),)
    elif prompt < context:
        fixes = (set_key("data.max_response_length", context - prompt),)
    field = LENGTH if isinstance(value, int) else "data.max_response_length"
    if prompt >= limit:
        yield Found(field, f"{text}the first long prompt stops the run.", fixes, stage=Stage.FIRST_STEP)
    else:
        yield Found(field, f"{text}long responses are cut.", fixes, Severity.WARNING, Stage.SILENT)


@rule(
    "rollout-experts", "expert parallelism spans the replica", Severity.ERROR, Stage.WORKERS,
    (f"{ROLLOUT}.expert_parallel_size", f"{ROLLOUT}.moe_tensor_parallel_size"),
    "verl 0.9.1 workers/config/rollout.py:294-300",
)  # fmt: skip
def rollout_experts(case: Case) -> Iterator[Found]:
    """vLLM and SGLang spread experts over all ranks of a replica or over none; TensorRT-LLM alone also splits each."""
    if case.get(f"{ROLLOUT}.name") == "trtllm":
        return
    key = f"{ROLLOUT}.expert_parallel_size"
    size, ranks = case.number(key, 1), case.number(TP, 1) * case.number(f"{ROLLOUT}.data_parallel_size", 1)
    if size > 1 and size != ranks:
        yield Found(key, f"it must be 1 or tensor × data parallel size, {ranks}.", (set_key(key, ranks),))
    key = f"{ROLLOUT}.moe_tensor_parallel_size"
    if case.number(key, 1) > 1:
        yield Found(key, "only TensorRT-LLM splits single experts: workers stop.", (set_key(key, 1),))


@rule(
    "rollout-nodes", "a replica fills whole nodes", Severity.ERROR, Stage.ROLLOUT, (TP,),
    "verl 0.9.1 workers/rollout/replica.py:113",
)  # fmt: skip
def rollout_nodes(case: Case) -> Iterator[Found]:
    """A replica wider than a node takes as many GPUs of each node it spans."""
    node = case.number(f"{ROLLOUT}.n_gpus_per_node" if case.rollout_has_pool else "trainer.n_gpus_per_node", 1)
    replica = _replica(case)
    if node > 0 and replica > node and replica % node:
        text = f"a replica of {replica} GPUs does not divide into nodes of {node}: the server stops."
        yield Found(TP, text, (set_key(TP, 1),) if replica == case.number(TP, 1) else ())


@rule(
    "rollout-disaggregation", "disaggregated serving runs on vLLM or SGLang", Severity.ERROR, Stage.WORKERS,
    (f"{ROLLOUT}.disaggregation.enabled",), "verl 0.9.1 workers/config/rollout.py (RolloutConfig.__post_init__)",
)  # fmt: skip
def rollout_disaggregation(case: Case) -> Iterator[Found]:
    """Prefill and decode on servers of their own; TensorRT-LLM has no such mode in verl."""
    key = f"{ROLLOUT}.disaggregation.enabled"
    if case.flag(key) and case.get(f"{ROLLOUT}.name") not in ("vllm", "sglang"):
        yield Found(key, "verl serves prefill and decode apart on vllm and sglang only.", (set_key(key, False),))


@rule(
    "rollout-memory", "the rollout's share of the GPU is there", Severity.ERROR, Stage.ROLLOUT, (UTILISATION,),
    "vLLM 0.24 v1/worker/gpu_worker.py (init_device, determine_available_memory)",
)  # fmt: skip
def rollout_memory(case: Case) -> Iterator[Found]:
    """The share is of the GPU's total memory, not of what is free: other processes on the GPU count against it, and
    the weights have to fit into it with room for a KV cache."""
    share = case.get(UTILISATION)
    if not isinstance(share, (int, float)) or isinstance(share, bool):
        return
    if not 0 < share <= 1:
        yield Found(UTILISATION, "it is a share of the GPU's memory, between 0 and 1.", (set_key(UTILISATION, 0.5),))
        return
    machine, architecture = case.facts.machine, case.facts.architecture
    if machine is None or not machine.gpu_memory_bytes:
        return
    free = (machine.gpu_free_bytes or machine.gpu_memory_bytes) / machine.gpu_memory_bytes
    if share > free and free < 1:
        lower = max(0.05, round(free - MARGIN, 2))
        text = f"only {free:.0%} of the fullest GPU's memory is free: the engine stops."
        yield Found(UTILISATION, text, (set_key(UTILISATION, lower),))
    if architecture is not None:
        weights = WEIGHT_BYTES * architecture.parameters / max(1, case.number(TP, 1)) / machine.gpu_memory_bytes
        if weights >= share:
            fixes = []
            if weights + 0.1 <= 0.9:
                fixes.append(set_key(UTILISATION, round(weights + 0.1, 2)))
            wider = case.number(TP, 1) * 2
            if case.rollout_ranks % wider == 0 and architecture.num_attention_heads % wider == 0:
                fixes.append(set_key(TP, wider))
            text = f"the weights alone take {weights:.0%} of a GPU: the engine has no room for a KV cache."
            yield Found(UTILISATION, text, tuple(fixes))


@rule(
    "rollout-sampling", "validation samples at a temperature above 0", Severity.ERROR, Stage.DRIVER,
    (f"{ROLLOUT}.temperature",), "verl 0.9.1 utils/config.py:200-203",
)  # fmt: skip
def rollout_sampling(case: Case) -> Iterator[Found]:
    """verl checks the training temperature when validation samples."""
    key = f"{ROLLOUT}.temperature"
    value = case.get(key)
    if case.flag(f"{ROLLOUT}.val_kwargs.do_sample") and isinstance(value, (int, float)) and value <= 0:
        yield Found(key, "validation samples, which needs a temperature above 0.", (set_key(key, 1.0),))


@rule(
    "group-size", "group methods need several responses a prompt", Severity.WARNING, Stage.SILENT, (f"{ROLLOUT}.n",),
    "verl 0.9.1 trainer/ppo/core_algos.py (compute_grpo_outcome_advantage, compute_rloo_outcome_advantage)",
)  # fmt: skip
def group_size(case: Case) -> Iterator[Found]:
    """GRPO and RLOO compare responses of one prompt: with one response, GRPO's advantage is the raw score and RLOO's
    baseline is empty."""
    group = ("grpo", "rloo", "grpo_vectorized", "rloo_vectorized", "gdpo", "opo", "grpo_passk")
    if case.get("algorithm.adv_estimator") in group and case.number(f"{ROLLOUT}.n", 1) == 1:
        yield Found(f"{ROLLOUT}.n", "the estimator compares responses of one prompt, and there is only one.",
                    (set_key(f"{ROLLOUT}.n", 8),))  # fmt: skip
