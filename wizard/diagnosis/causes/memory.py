"""Memory that ran out: on the GPU by phase, in the rollout engine, on the host."""

from __future__ import annotations

import re

from wizard.diagnosis.evidence import Cause, Evidence, Fixes, Level, set_fields
from wizard.findings import Fix
from wizard.memory import PredictionError, predict
from wizard.plan import Plan

_OOM = re.compile(
    r"CUDA out of memory|(?:torch\.(?:cuda\.)?)OutOfMemoryError|HIP out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDA error: out of memory|CUDA Error: out of memory"
)
NCCL_BYTES = 512 << 20
"""A communicator's buffers with the default channels, rounded up."""
FULL_BYTES = 256 << 20
"""With less room than this, a request that failed may have failed for want of memory."""
_TORCH_OOM = "torch `c10/cuda/CUDACachingAllocator.cpp`"


def fewer_tokens(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    """Halve what one forward-backward pass holds, but never below the longest sequence."""
    batches, longest = plan.batches, plan.data.longest_sequence
    if not batches.dynamic:
        half = batches.micro_batch_size_per_gpu // 2
        return (set_fields(f"micro-batches of {half}", batches__micro_batch_size_per_gpu=half),) if half else ()
    half = max(batches.max_tokens_per_gpu // 2, -(-longest // plan.actor.ulysses_size))
    if half >= batches.max_tokens_per_gpu:
        return ()
    return (set_fields(f"token budget of {half}", batches__max_tokens_per_gpu=half),)


def _cheapest_that_fits(static: Fixes) -> Fixes:
    """Put what the memory predictor finds enough before the changes that are known to help in this phase."""

    def fixes(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
        try:
            found = predict(plan).remedies
        except PredictionError:
            found = ()
        known = {frozenset((change.field, repr(change.value)) for change in fix.changes) for fix in found}
        more = static(match, plan)
        return found + tuple(
            fix for fix in more if frozenset((change.field, repr(change.value)) for change in fix.changes) not in known
        )

    return fixes


def _loss(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    fixes = fewer_tokens(match, plan)
    if not plan.model.fused_kernels:
        fixes += (set_fields("fused kernels: no logits at all", model__fused_kernels=True),)
    return fixes


def _logits(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    fixes: tuple[Fix, ...] = ()
    if not plan.actor.entropy_chunking:
        fixes += (set_fields("entropy in chunks", actor__entropy_chunking=True),)
    if not plan.actor.entropy_checkpointing and plan.algorithm.entropy_coef:
        fixes += (set_fields("recompute entropy in backward", actor__entropy_checkpointing=True),)
    return fixes + _loss(match, plan)


def _optimizer(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    fixes: tuple[Fix, ...] = ()
    if not plan.actor.optimizer_offload:
        fixes += (set_fields("optimizer on the host between updates", actor__optimizer_offload=True),)
    if plan.actor.strategy == "fsdp2" and not plan.actor.offload_policy:
        offload = {"actor__offload_policy": True, "actor__optimizer_offload": False, "actor__param_offload": False}
        fixes += (set_fields("parameters, gradients and optimizer on the host", **offload),)
    return fixes


def _activations(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    fixes: tuple[Fix, ...] = ()
    if not plan.model.gradient_checkpointing:
        fixes += (set_fields("gradient checkpointing", model__gradient_checkpointing=True),)
    return fixes + fewer_tokens(match, plan) + _optimizer(match, plan)


def _gather(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    fixes: tuple[Fix, ...] = ()
    if plan.actor.wrap_classes or plan.actor.min_num_params:
        label = "wrap the model's own layer classes"
        fixes += (set_fields(label, actor__wrap_classes=(), actor__min_num_params=0),)
    if not plan.actor.reshard_after_forward:
        fixes += (set_fields("free gathered parameters after forward", actor__reshard_after_forward=True),)
    return fixes + fewer_tokens(match, plan)


def _rollout(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    fixes: tuple[Fix, ...] = ()
    if not (plan.actor.param_offload and plan.actor.optimizer_offload) and not plan.actor.offload_policy:
        offload = {"actor__param_offload": True, "actor__optimizer_offload": True}
        fixes += (set_fields("the trainer's states on the host during rollout", **offload),)
    share = round(plan.rollout.gpu_memory_utilization - 0.1, 2)
    if share > 0:
        fixes += (set_fields(f"rollout takes {share:g} of the GPU", rollout__gpu_memory_utilization=share),)
    return fixes


def _more_for_cache(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    fixes: tuple[Fix, ...] = ()
    share = round(plan.rollout.gpu_memory_utilization + 0.1, 2)
    if share <= 0.9:
        fixes += (set_fields(f"rollout takes {share:g} of the GPU", rollout__gpu_memory_utilization=share),)
    wider = plan.rollout.tensor_parallel_size * 2
    if plan.ranks("rollout") % wider == 0:
        fixes += (set_fields(f"tensor parallel size {wider}", rollout__tensor_parallel_size=wider),)
    return fixes


def _host(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    fixes: tuple[Fix, ...] = ()
    if plan.actor.offload_policy:
        fixes += (set_fields("states on the GPU", actor__offload_policy=False),)
    if plan.actor.param_offload or plan.actor.optimizer_offload:
        offload = {"actor__param_offload": False, "actor__optimizer_offload": False}
        fixes += (set_fields("states on the GPU", **offload),)
    return fixes


def _gpu_full(evidence: Evidence) -> bool:
    """NCCL's own message names no reason at all unless NCCL_DEBUG is set: then the event's figures have to."""
    said = re.search(r"out of memory|Failed to CUDA", evidence.message)
    return said is not None or evidence.memory.get("free_bytes", NCCL_BYTES) < NCCL_BYTES


def _host_full(evidence: Evidence) -> bool:
    """oneDNN says the same of a shape it does not support as of memory it did not get: the figures tell them apart."""
    if "could not create a" not in evidence.message:
        return True
    memory = evidence.memory
    left = [memory[name] for name in ("cgroup_left_bytes", "host_free_bytes") if name in memory]
    if "address_space_limit_bytes" in memory:
        left.append(memory["address_space_limit_bytes"] - memory.get("address_space_bytes", 0))
    return min(left, default=FULL_BYTES) < FULL_BYTES


CAUSES = (
    Cause(
        "rollout-wake-up-oom",
        "GPU memory ran out while the rollout engine woke up",
        re.compile(r"CUDA Error: out of memory at .*cumem_allocator\.cpp|out of memory.*cumem"),
        "The rollout engine could not map its weights and KV cache again: the trainer still held too much of the GPU.",
        "Offload the actor's parameters and optimizer, or lower rollout.gpu_memory_utilization.",
        fixes=_rollout,
        source="vLLM `csrc/cumem_allocator.cpp`",
    ),
    Cause(
        "rollout-free-memory",
        "too little free GPU memory when the rollout engine started",
        re.compile(
            r"Free memory on device.{0,80}?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)"
            r".*less than desired GPU memory utilization"
        ),
        "The rollout engine found {free} of {total} GiB free, less than the share it is told to take.",
        "Lower rollout.gpu_memory_utilization, offload the actor, or end the other processes on this GPU.",
        rule="rollout-memory",
        fixes=_rollout,
        source="vLLM `v1/worker/gpu_worker.py`",
    ),
    Cause(
        "rollout-no-cache",
        "no memory left for the KV cache",
        re.compile(
            r"No available memory for the cache blocks"
            r"|larger than the maximum number of tokens that can be stored in KV cache"
            r"|KV cache is needed, which is larger than the available"
        ),
        "After its weights, the rollout engine had too little of its share left for one sequence's KV cache.",
        "Raise rollout.gpu_memory_utilization or the tensor parallel size, or shorten rollout.max_model_len.",
        fixes=_more_for_cache,
        source="vLLM `v1/core/kv_cache_utils.py`",
    ),
    Cause(
        "gpu-oom-nccl",
        "NCCL found no GPU memory for its buffers",
        re.compile(r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA \w*alloc|NCCL error|ncclUnhandledCudaError"),
        "NCCL needs a few hundred MB of its own, outside torch's allocator, and the GPU was full.",
        "End the other processes on this GPU (nvidia-smi), or leave more of it free: a lower "
        "rollout.gpu_memory_utilization, a smaller token budget.",
        when=_gpu_full,
        fixes=_rollout,
        source="NCCL `src/include/alloc.h`",
    ),
    Cause(
        "gpu-oom-rollout-wake-up",
        "GPU memory ran out while the rollout engine woke up",
        _OOM,
        "The rollout engine could not take its memory back: the trainer still held too much of the GPU.",
        "Offload the actor's parameters and optimizer, or lower rollout.gpu_memory_utilization.",
        frames=re.compile(r"cumem|:wake_up|:resume_memory_occupation"),
        fixes=_rollout,
        source=_TORCH_OOM,
    ),
    Cause(
        "gpu-oom-logits",
        "GPU memory ran out over the entropy",
        _OOM,
        "The entropy of one micro-batch did not fit: its tensors are tokens × vocabulary.",
        "Compute entropy in chunks, or lower the token budget (micro-batch) a GPU holds.",
        frames=re.compile(r":(?!cross_|_?binary_cross_)\w*entropy"),
        fixes=_cheapest_that_fits(_logits),
        source=_TORCH_OOM,
    ),
    Cause(
        "gpu-oom-loss",
        "GPU memory ran out over the logits",
        _OOM,
        "The logits of one micro-batch, or what the loss makes of them, did not fit: these tensors are tokens × "
        "vocabulary.",
        "Lower the token budget (micro-batch) a GPU holds, or use fused kernels, which make no logits.",
        frames=re.compile(
            r"logprobs_from_logits|log_softmax|logsumexp|cross_entropy|log_probs_from|passes\.py:token_loss\Z"
        ),
        fixes=_cheapest_that_fits(_loss),
        source=_TORCH_OOM,
    ),
    Cause(
        "gpu-oom-optimizer",
        "GPU memory ran out in the optimizer step",
        _OOM,
        "AdamW's two moments did not fit beside what was already on the GPU; they are made in the first step.",
        "Offload the optimizer, shard over more GPUs, or train with LoRA.",
        frames=re.compile(r"optim/adam|:optimizer_step|_multi_tensor|_foreach|:_init_group|load_fsdp_optimizer"),
        fixes=_cheapest_that_fits(_optimizer),
        source=_TORCH_OOM,
    ),
    Cause(
        "gpu-oom-gather",
        "GPU memory ran out while an FSDP unit was gathered",
        _OOM,
        "All parameters of one FSDP unit have to fit at once, and this unit's did not.",
        "Check the wrap classes: one unit for each layer keeps the gathered part small.",
        frames=re.compile(
            r":unshard|all_gather|:_pre_forward|_alloc_padded_unsharded|:_unshard|:full_tensor|summon_full"
        ),
        fixes=_cheapest_that_fits(_gather),
        source=_TORCH_OOM,
    ),
    Cause(
        "gpu-oom-load",
        "GPU memory ran out while the model was loaded",
        _OOM,
        "The parameters alone did not fit where they were put.",
        "Shard over more GPUs, use offload_policy (fsdp2), or look for another process on this GPU.",
        frames=re.compile(r"from_pretrained|:_build_module|:load_|:_build_fsdp_module|:materialize"),
        fixes=_cheapest_that_fits(_optimizer),
        source=_TORCH_OOM,
    ),
    Cause(
        "gpu-oom-activations",
        "GPU memory ran out in forward or backward",
        _OOM,
        "Activations of one micro-batch did not fit beside parameters, gradients and optimizer.",
        "Lower the token budget (micro-batch), checkpoint activations, or offload the optimizer.",
        fixes=_cheapest_that_fits(_activations),
        source=_TORCH_OOM,
    ),
    Cause(
        "ray-host-oom",
        "host memory ran out: Ray killed a worker",
        re.compile(
            r"running low on memory|Memory on the node .* was .* which exceeds the memory usage threshold"
            r"|ray\.exceptions\.OutOfMemoryError"
        ),
        "The node's RAM passed Ray's limit, and Ray killed the process it holds responsible.",
        "Compare the node's memory with the estimate's host figure; fewer offloaded states, a smaller object "
        "store, or more RAM.",
        rule="host-memory",
        fixes=_host,
        source="ray `_private/memory_monitor.py`",
    ),
    Cause(
        "host-oom",
        "host memory ran out",
        re.compile(
            r"oom[-_]kill|Out of memory: Killed process|Memory cgroup out of memory|exceeded its memory limit"
            r"|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|^MemoryError|std::bad_alloc"
            r"|could not create a (?:primitive|memory)"
        ),
        "The node, this process's cgroup, or its ulimit had no RAM left.",
        "Raise the limit (cgroup, container, job, ulimit -v) to the estimate's host figure: every rank loads a tied "
        "model in full; offloaded states live in RAM.",
        when=_host_full,
        rule="host-memory",
        fixes=_host,
        source="Linux `mm/oom_kill.c`; torch `c10/core/impl/alloc_cpu.cpp`; oneDNN",
    ),
    Cause(
        "shared-memory",
        "/dev/shm is full",
        re.compile(
            r"Bus error|unable to (?:open|write|mmap).{0,60}shared memory|No space left on device.{0,80}/dev/shm"
            r"|insufficient shared memory"
        ),
        "A process wrote to shared memory that has no room; containers give 64 MB by default.",
        "Start the container with --shm-size=10g or more (or --ipc=host).",
        source="torch `lib/libshm`; NCCL `src/misc/shmutils.cc`",
    ),
    Cause(
        "disk-full",
        "the disk is full",
        re.compile(
            r"\[Errno 28\] No space left on device|Disk quota exceeded|OutOfDiskError"
            r"|file_system_monitor.*over 95% full"
        ),
        "A file could not be written because its disk is full.",
        "Free space, or point trainer.default_local_dir, HF_HOME and Ray's --temp-dir to a larger disk.",
        level=Level.ROOT,
        source="POSIX ENOSPC; ray `_private/utils.py`",
    ),
)
