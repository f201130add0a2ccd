"""What Hydra and verl's own checks say about a configuration."""

from __future__ import annotations

import math
import re

from wizard.diagnosis.evidence import Cause, Level, set_fields
from wizard.findings import Change, Fix
from wizard.plan import Plan


def _whole_batches(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    """Round the train batch up to what divides over the ranks and mini-batches."""
    mini = _even_mini(plan)
    step = math.lcm(plan.world_size // math.gcd(plan.world_size, plan.rollout.n), mini)
    train = -(-plan.batches.train_batch_size // step) * step
    sizes = {"batches__train_batch_size": train, "batches__mini_batch_size": mini}
    if (train, mini) == (plan.batches.train_batch_size, plan.batches.mini_batch_size):
        return ()
    return (set_fields(f"train batch {train}, mini-batch {mini}", **sizes),)


def _even_mini(plan: Plan) -> int:
    parallel = max(1, plan.world_size // plan.actor.ulysses_size)
    step = parallel // math.gcd(parallel, plan.rollout.n)
    if not plan.batches.dynamic:
        per_rank = parallel * plan.batches.micro_batch_size_per_gpu
        step = per_rank // math.gcd(per_rank, plan.rollout.n)
    return max(step, -(-min(plan.batches.mini_batch_size, plan.batches.train_batch_size) // step) * step)


def _whole_sequences(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    longest = plan.data.longest_sequence
    names = ("max_tokens_per_gpu", "log_prob_max_tokens_per_gpu", "critic_max_tokens_per_gpu")
    share = -(-longest // plan.actor.ulysses_size)
    short = {f"batches__{name}": longest for name in names if getattr(plan.batches, name) < share}
    return (set_fields(f"token budgets of {longest}", **short),) if short else ()


def _dynamic(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    return () if plan.batches.dynamic else (set_fields("dynamic batching", batches__dynamic=True),)


def _remove_padding(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    return () if plan.model.use_remove_padding else (set_fields("remove padding", model__use_remove_padding=True),)


def _smaller_ulysses(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    found = plan.architecture
    world = int(match.groupdict().get("world") or plan.world_size)
    for size in range(plan.actor.ulysses_size - 1, 1, -1):
        heads = found.num_attention_heads if found else size
        kv = found.num_key_value_heads if found else size
        if world % size == 0 and heads % size == 0 and (kv % size == 0 or size % kv == 0):
            return (set_fields(f"sequence parallel size {size}", actor__ulysses_size=size), _no_ulysses())
    return (_no_ulysses(),) if plan.actor.ulysses_size > 1 else ()


def _no_ulysses() -> Fix:
    return set_fields("no sequence parallelism", actor__ulysses_size=1)


def _smaller_tensor_parallel(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    heads = plan.architecture.num_attention_heads if plan.architecture else 0
    for size in range(plan.rollout.tensor_parallel_size - 1, 0, -1):
        if plan.ranks("rollout") % size == 0 and heads % size == 0:
            return (set_fields(f"tensor parallel size {size}", rollout__tensor_parallel_size=size),)
    return ()


def _length(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    longest = plan.data.longest_sequence
    if plan.rollout.max_model_len in (0, longest):
        return ()
    return (set_fields(f"max_model_len {longest}", rollout__max_model_len=longest),)


def _leave_out(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    refused = next(filter(None, match.groupdict().values()), "")
    keys = [key for key, _ in plan.extra_overrides if refused and f".{key}".endswith(f".{refused}")]
    return tuple(Fix(f"leave {key} out", (Change(f"~{key}", None),)) for key in keys)


def _console(match: re.Match[str], plan: Plan) -> tuple[Fix, ...]:
    if plan.trainer.logger == ("console",):
        return ()
    return (set_fields("log to the console only", trainer__logger=("console",)),)


CAUSES = (
    Cause(
        "batch-not-divisible",
        "the train batch does not divide over the GPUs",
        re.compile(
            r"real_train_batch_size \((?P<value>\d+)\) must be divisible by|only support equal chunk"
            r"|Got size of DataProto (?P<size>\d+) and chunk (?P<chunk>\d+)"
        ),
        "train batch × n responses has to divide evenly over the GPUs, and {value}{size} does not.",
        "Make train_batch_size × rollout.n a multiple of the number of GPUs.",
        rule="train-batch-divisible",
        fixes=_whole_batches,
        source="verl 0.9.1 `utils/config.py` (`validate_config`), `protocol.py`",
    ),
    Cause(
        "train-below-mini",
        "the train batch is smaller than the mini-batch",
        re.compile(r"train_batch_size \((?P<train>\d+)\) must be >= \S*ppo_mini_batch_size \((?P<mini>\d+)\)"),
        "A step of {train} prompts cannot hold one mini-batch of {mini}.",
        "Lower the mini-batch or raise the train batch; both count prompts.",
        rule="mini-batch-larger",
        fixes=_whole_batches,
        source="verl 0.9.1 `workers/config/actor.py`, `critic.py`",
    ),
    Cause(
        "mini-not-divisible",
        "the mini-batch does not divide over the data-parallel ranks",
        re.compile(
            r"Got mini_batch_size=(?P<mini>\d+) and .*get_data_parallel_size\(\)=(?P<ranks>\d+)"
            r"|ppo_mini_batch_size (?P<zero>\d+) should be larger than 0 after normalization"
            r"|data size must be divisible by force_group_size"
        ),
        "A mini-batch of {mini}{zero} samples does not divide over the ranks or the micro-batches.",
        "Make mini_batch_size × rollout.n a multiple of (GPUs / Ulysses size) × micro-batch.",
        rule="mini-batch-divisible",
        fixes=_whole_batches,
        source="verl 0.9.1 `workers/engine_workers.py`, `workers/engine/utils.py`",
    ),
    Cause(
        "micro-batch-unset",
        "no micro-batch size",
        re.compile(r"\[(?P<role>\w+)\] (?:Please set at least one of|You have set both) "),
        "verl wants exactly one of the two micro-batch keys of {role}.",
        "Set only the key that ends in _per_gpu, or use dynamic batching.",
        rule="micro-batch-unset",
        fixes=_dynamic,
        source="verl 0.9.1 `utils/config.py` (`check_mutually_exclusive`)",
    ),
    Cause(
        "token-cap",
        "the token budget is below the longest sequence",
        re.compile(r"max_token_len must be greater than the sequence length"),
        "With dynamic batching, one sequence has to fit into the token budget, and this one did not.",
        "Raise the token budget × Ulysses size to at least prompt + response.",
        rule="token-cap",
        fixes=_whole_sequences,
        source="verl 0.9.1 `utils/seqlen_balancing.py`",
    ),
    Cause(
        "ulysses-remove-padding",
        "Ulysses needs remove padding",
        re.compile(
            r"(?:you must|must) enable `?use_remove_padding|When using sequence parallelism.*use_remove_padding"
        ),
        "Sequence parallelism is on, and sequences are padded.",
        "Set use_remove_padding, or sequence parallel size 1.",
        rule="ulysses-remove-padding",
        fixes=_remove_padding,
        source="verl 0.9.1 `workers/config/actor.py`, `workers/engine/fsdp/transformer_impl.py`",
    ),
    Cause(
        "ulysses-heads",
        "the sequence parallel size does not divide the heads",
        re.compile(
            r"num_(?:attention_heads|key_value_heads) ?(?P<heads>\d+)? ?must be divisible by ulysses"
        ),
        "Ulysses gives every rank a share of the attention heads, and this size does not divide them.",
        "Choose a size that divides the attention heads, and divides or is a multiple of the key-value heads.",
        rule="ulysses-heads",
        fixes=_smaller_ulysses,
        source="verl 0.9.1 `models/transformers/monkey_patch.py`",
    ),
    Cause(
        "ulysses-world",
        "the sequence parallel size does not divide the ranks",
        re.compile(r"ulysses_size (?P<size>\d+) does not divide the world size (?P<world>\d+)"),
        "{world} ranks cannot be split into groups of {size} that share a sequence.",
        "Choose a size that divides the number of ranks, or run on as many as the Plan has.",
        rule="ulysses-world",
        fixes=_smaller_ulysses,
        source="verl 0.9.1 `workers/engine/fsdp/transformer_impl.py` (`_build_device_mesh`)",
    ),
    Cause(
        "fsdp-size",
        "the shard group does not divide the ranks",
        re.compile(
            r"fsdp_size (?P<size>-?\d+) does not divide the world size (?P<world>\d+)"
            r"|Mesh should not be bigger than default world size"
        ),
        "{world} ranks cannot be split into shard groups of {size}.",
        "Choose a divisor of the number of ranks, or -1 for all of them.",
        rule="fsdp-size",
        fixes=lambda match, plan: (set_fields("shard over all ranks", actor__fsdp_size=-1),),
        source="verl 0.9.1 `workers/engine/fsdp/utils.py` (`create_device_mesh`); torch `distributed/device_mesh.py`",
    ),
    Cause(
        "rollout-tensor-parallel",
        "the rollout's tensor parallel size does not divide",
        re.compile(
            r"rollout world_size: (?P<world>\d+) is not divisible by infer_(?:tp|world_size): (?P<tp>\d+)"
            r"|Total number of attention heads \((?P<heads>\d+)\) must be divisible by "
            r"tensor parallel size \((?P<size>\d+)\)"
        ),
        "GPUs and attention heads have to be multiples of the tensor parallel size {tp}{size}.",
        "Choose a size that divides both; verl's default is 2, also on one GPU.",
        rule="rollout-tensor-parallel",
        fixes=_smaller_tensor_parallel,
        source="verl 0.9.1 `workers/engine_workers.py`; vLLM `config/model.py`",
    ),
    Cause(
        "rollout-length",
        "the rollout's longest sequence does not fit",
        re.compile(
            r"max_model_len \((?P<len>\d+)\) is greater than the derived max_model_len"
            r"|[Pp]rompt.{0,40}longer than the maximum model length"
            r"|max_model_len should be greater than total sequence length"
        ),
        "max_model_len, the model's own limit, and prompt + response do not agree.",
        "Set max_model_len to prompt + response, within the model's max_position_embeddings; filter longer prompts.",
        rule="rollout-length",
        fixes=_length,
        source="vLLM `config/model.py`; verl 0.9.1 `workers/rollout`",
    ),
    Cause(
        "hydra-unknown-key",
        "verl has no such key",
        re.compile(r"Could not override '(?P<key>[^']+)'|Key '(?P<name>[^']+)' is not in struct"),
        "Hydra refuses {key}{name}: it is not in verl's configuration.",
        "Check the spelling against this verl version; a key that verl reads without listing it needs a + in front.",
        rule="unknown-key",
        fixes=_leave_out,
        source="hydra-core 1.3 `_internal/config_loader_impl.py`; omegaconf",
    ),
    Cause(
        "hydra-append",
        "the key is there already",
        re.compile(r"Could not append to config\. An item is already at '(?P<key>[^']+)'"),
        "+{key} is refused because verl's configuration already has it.",
        "Take the + away, or write ++.",
        rule="hydra-refuses",
        source="hydra-core 1.3 `_internal/config_loader_impl.py`",
    ),
    Cause(
        "hydra-config-missing",
        "Hydra does not find the configuration",
        re.compile(
            r"Primary config directory not found|Could not load '?(?P<name>[\w/]+)'?"
            r"|Cannot find primary config '(?P<file>[^']+)'"
        ),
        "Hydra found neither your file nor verl's configuration beside it ({name}{file}).",
        "Use --config-dir DIR --config-name NAME with `defaults: [ppo_trainer, _self_]` in the file.",
        source="hydra-core 1.3 `_internal/config_loader_impl.py`",
    ),
    Cause(
        "dataclass-unknown-key",
        "a worker refuses a key",
        re.compile(r"(?P<cls>\w+Config)\.__init__\(\) got an unexpected keyword argument '(?P<key>\w+)'"),
        "The key {key} composes, but {cls} has no such field, so workers stop when they start.",
        "Remove it, or check its place in this verl version.",
        rule="unknown-key",
        source="verl 0.9.1 `utils/config.py` (`omega_conf_to_dataclass`)",
    ),
    Cause(
        "strategy-unknown",
        "verl has no such strategy",
        re.compile(r"Unknown backend: (?P<name>\S+)|strategy (?P<given>\S+) (?:not|is not) (?:supported|in)"),
        "{name}{given} is no training engine of verl.",
        "Use fsdp or fsdp2.",
        rule="strategy-unknown",
        fixes=lambda match, plan: (set_fields("fsdp2", actor__strategy="fsdp2"),),
        source="verl 0.9.1 `workers/engine/base.py`",
    ),
    Cause(
        "dtype-unknown",
        "verl has no such dtype",
        re.compile(r"unexpected precision[: ]*(?P<name>\S*)"),
        "{name} is no dtype that verl reads.",
        "Use fp32, bf16 or fp16.",
        rule="dtype-unknown",
        source="verl 0.9.1 `utils/torch_dtypes.py`",
    ),
    Cause(
        "estimator-unknown",
        "verl has no such advantage estimator",
        re.compile(r"Unknown advantage estimator(?: simply)?:?\s*(?P<name>\S*)"),
        "algorithm.adv_estimator names no estimator of verl; it is looked up only when the first batch is there.",
        "Use grpo, gae, rloo, reinforce_plus_plus or remax.",
        rule="estimator-unknown",
        source="verl 0.9.1 `trainer/ppo/core_algos.py`",
    ),
    Cause(
        "data-missing",
        "the data set was not found",
        re.compile(r"(?:FileNotFoundError|No such file or directory).*?(?P<file>\S+\.(?:parquet|jsonl?|arrow))"),
        "The data file {file} does not exist on the node that reads it.",
        "Write an absolute path that every node sees.",
        source="verl 0.9.1 `utils/dataset/rl_dataset.py`",
    ),
    Cause(
        "data-empty",
        "the data set is smaller than one batch",
        re.compile(r"Train dataloader is empty|ZeroDivisionError: integer (?:division|modulo) or modulo by zero"),
        "After filtering, fewer prompts are left than one train batch.",
        "Lower train_batch_size, or raise max_prompt_length so that fewer prompts are filtered.",
        level=Level.SYMPTOM,
        source="verl 0.9.1 `trainer/ppo/ray_trainer.py`, `trainer/ppo/v1/trainer_base.py`",
    ),
    Cause(
        "wandb-login",
        "wandb is not logged in",
        re.compile(r"wandb: ERROR|wandb\.errors\.(?:errors\.)?UsageError|api_key not configured \(no-tty\)"),
        "verl logs to wandb by default, and there is no key on this node.",
        "wandb login, or trainer.logger=['console'].",
        rule="logger-wandb",
        fixes=_console,
        source="wandb `sdk/wandb_login.py`",
    ),
)
