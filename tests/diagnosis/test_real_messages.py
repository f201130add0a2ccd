"""Messages are recognised as torch, transformers, Hydra, safetensors and verl really print them: each is provoked."""

import re
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from wizard.diagnosis import diagnose
from wizard.diagnosis.causes import CAUSES
from wizard.diagnosis.evidence import Evidence
from wizard.facts import Architecture, LayerClass, Machine, ModuleGroup
from wizard.fixing import apply_fix
from wizard.memory import predict
from wizard.model.catalog import preset
from wizard.plan import Batches, Fsdp, Model, Plan, Rollout
from wizard.rules import explain

torch = pytest.importorskip("torch")


def evidence_of(error: BaseException) -> Evidence:
    last = traceback.format_exception_only(error)[-1].strip()
    first = "".join(traceback.format_exception_only(error)).split("\n")[0]
    frames = tuple(f"{frame.filename}:{frame.name}" for frame in traceback.extract_tb(error.__traceback__))
    return Evidence(first if len(first) >= len(last) else f"{first} {last}", frames)


def cause_of(action: Callable[[], object], plan: Plan | None = None) -> str:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        action()
    return diagnose(evidence_of(caught.value), plan or Plan()).cause


def tiny_model() -> "torch.nn.Module":
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=32, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


def test_meta_tensor():
    with torch.device("meta"):
        layer = torch.nn.Linear(2, 2)
    assert cause_of(lambda: layer.to("cpu")) == "meta-tensor"


def test_checkpoint_of_another_shape_or_with_a_tensor_missing():
    layer = torch.nn.Linear(2, 3)
    assert cause_of(lambda: layer.load_state_dict({"weight": torch.zeros(9, 2), "bias": torch.zeros(3)})) == (
        "checkpoint-mismatch"
    )


def test_truncated_safetensors(tmp_path: Path):
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(64, 64)}, path)
    path.write_bytes(path.read_bytes()[:200])
    assert cause_of(lambda: load_file(path)) == "checkpoint-truncated"


def test_a_git_lfs_pointer_in_place_of_weights(tmp_path: Path):
    from safetensors.torch import load_file

    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert cause_of(lambda: load_file(path)) == "checkpoint-truncated"


def test_folder_without_weights_and_unknown_model_type(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}')
    assert cause_of(lambda: transformers.AutoConfig.from_pretrained(tmp_path)) == "model-unknown-type"
    tiny_model().config.save_pretrained(tmp_path)
    assert cause_of(lambda: transformers.AutoModelForCausalLM.from_pretrained(tmp_path)) == "model-not-found"


def test_remote_code_without_consent(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}')
    (tmp_path / "mine.py").write_text("raise SystemExit('must not run')\n")
    load = lambda: transformers.AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)  # noqa: E731
    assert cause_of(load) == "remote-code"


def test_flash_attention_without_the_package():
    transformers = pytest.importorskip("transformers")
    if transformers.utils.is_flash_attn_2_available():
        pytest.skip("flash-attn is installed here")
    config = tiny_model().config
    build = lambda: transformers.AutoModelForCausalLM.from_config(config, attn_implementation="flash_attention_2")  # noqa: E731
    assert cause_of(build) == "flash-attn-missing"


def test_no_gpu():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert cause_of(lambda: torch.zeros(1, device="cuda")) == "no-cuda"


def test_units_of_mixed_dtype_and_of_mixed_requires_grad():
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    handle = object.__new__(FlatParamHandle)
    handle._use_orig_params = False
    mixed = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))]
    assert cause_of(lambda: handle._validate_tensors_to_flatten(mixed)) == "unit-mixed-dtypes"
    frozen = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2), requires_grad=False)]
    assert cause_of(lambda: handle._validate_tensors_to_flatten(frozen)) == "unit-mixed-grad"


def test_sharded_embedding_used_outside_its_unit():
    flat = torch.zeros(8)
    assert cause_of(lambda: torch.nn.functional.embedding(torch.tensor([1]), flat)) == "embedding-outside-forward"


def test_host_memory_refused_by_the_allocator():
    assert cause_of(lambda: torch.empty(1 << 60, dtype=torch.uint8)) == "host-oom"


def test_taken_port():
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    again = lambda: torch.distributed.TCPStore(  # noqa: E731
        "127.0.0.1", store.port, is_master=True, wait_for_workers=False
    )
    assert cause_of(again) == "port-in-use"


def test_sampling_from_nan():
    assert cause_of(lambda: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1)) == "non-finite-sampling"


@pytest.mark.verl
class TestVerl:
    @pytest.fixture(autouse=True)
    def _verl(self):
        pytest.importorskip("verl", reason="verl is not installed in this interpreter")

    @staticmethod
    def composed(*overrides: str):
        from hydra import compose, initialize_config_module

        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("ppo_trainer", overrides=["actor_rollout_ref.rollout.name=vllm", *overrides])

    def validated(self, *overrides: str) -> None:
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import validate_config

        config = self.composed("algorithm.adv_estimator=grpo", *overrides)
        validate_config(config, need_reference_policy(config), need_critic(config))

    def test_wrap_class(self):
        from verl.utils.fsdp_utils import get_fsdp_wrap_policy

        config = {"transformer_layer_cls_to_wrap": ["LLaMADecoderLayer"]}
        assert cause_of(lambda: get_fsdp_wrap_policy(tiny_model(), config)) == "wrap-class-missing"

    def test_fsdp2_without_a_class(self):
        from verl.utils.fsdp_utils import apply_fsdp2

        config = {"wrap_policy": {"transformer_layer_cls_to_wrap": None}}
        assert cause_of(lambda: apply_fsdp2(tiny_model(), {}, config)) == "wrap-class-none"

    @pytest.mark.parametrize(
        ("override", "cause"),
        [
            ("actor_rollout_ref.actor.grad_offload=true", "hydra-unknown-key"),
            ("+actor_rollout_ref.actor.strategy=fsdp2", "hydra-append"),
        ],
    )
    def test_composition(self, override: str, cause: str):
        assert cause_of(lambda: self.composed(override)) == cause

    @pytest.mark.parametrize(
        ("overrides", "cause"),
        [
            ((), "micro-batch-unset"),
            (
                ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "data.train_batch_size=3",
                 "actor_rollout_ref.actor.ppo_mini_batch_size=1", "trainer.n_gpus_per_node=8"),
                "batch-not-divisible",
            ),
            (
                ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "data.train_batch_size=16",
                 "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
                 "actor_rollout_ref.actor.ppo_mini_batch_size=128"),
                "train-below-mini",
            ),
            (("+actor_rollout_ref.actor.fsdp_config.no_such=1",
              "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"), "dataclass-unknown-key"),
            (("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", "data.train_batch_size=256",
              "actor_rollout_ref.model.use_remove_padding=false",
              "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
              "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"), "ulysses-remove-padding"),
        ],
    )  # fmt: skip
    def test_driver(self, overrides: tuple[str, ...], cause: str):
        assert cause_of(lambda: self.validated(*overrides)) == cause

    def test_precision_backend_estimator_and_token_cap(self):
        from tensordict import TensorDict
        from verl.trainer.ppo.core_algos import get_adv_estimator_fn
        from verl.utils.seqlen_balancing import rearrange_micro_batches
        from verl.utils.torch_dtypes import PrecisionType

        assert cause_of(lambda: PrecisionType.to_dtype("float8")) == "dtype-unknown"
        assert cause_of(lambda: get_adv_estimator_fn("grop")) == "estimator-unknown"
        ones = torch.ones(2, 8, dtype=torch.long)
        batch = TensorDict({"input_ids": ones, "attention_mask": ones}, batch_size=2)
        assert cause_of(lambda: rearrange_micro_batches(batch, max_token_len=4)) == "token-cap"


def test_every_text_of_a_cause_can_be_filled():
    for cause in CAUSES:
        groups = dict.fromkeys((*cause.pattern.groupindex, *(cause.frames.groupindex if cause.frames else ())), "")
        assert cause.what.format(**groups)
        assert cause.remedy.format(**groups)
        assert cause.source


def test_rules_named_by_causes_exist():
    for cause in CAUSES:
        if cause.rule:
            assert explain(cause.rule).id == cause.rule


def test_ids_are_unique():
    assert len({cause.id for cause in CAUSES}) == len(CAUSES)


def plan_of(**changes: object) -> Plan:
    layer = LayerClass("Qwen2DecoderLayer", 24, 1, 1, "block", True, True)
    architecture = Architecture(
        "qwen2", "Qwen2ForCausalLM", 1, 1, True, 24, 896, 4864, 14, 2, 64, 151936, 32768, "bfloat16",
        ("Qwen2DecoderLayer",), (layer,), ModuleGroup("", "Qwen2ForCausalLM", 1, 1, 1), 1,
    )  # fmt: skip
    return Plan(machine=Machine(gpus_per_node=8), architecture=architecture, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "frames", "plan", "path", "value"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.64 GiB",
         ("torch_functional.py:entropy_from_logits",), plan_of(), "actor.entropy_chunking", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", ("torch/optim/adamw.py:step",),
         plan_of(), "actor.optimizer_offload", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", ("modeling_qwen2.py:forward",),
         plan_of(), "batches.max_tokens_per_gpu", 8192),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", ("modeling_qwen2.py:forward",),
         plan_of(batches=Batches(dynamic=False, micro_batch_size_per_gpu=8)), "batches.micro_batch_size_per_gpu", 4),
        ("torch.OutOfMemoryError: CUDA out of memory", ("_fsdp_param_group.py:unshard",),
         plan_of(actor=Fsdp(wrap_classes=("Qwen2Model",))), "actor.wrap_classes", ()),
        ("Exception: Could not find any of the transformer layer classes to wrap in the model: ['qwen2']", (),
         plan_of(actor=Fsdp(wrap_classes=("qwen2",))), "actor.wrap_classes", ("Qwen2DecoderLayer",)),
        ("AssertionError: num_attention_heads 14 must be divisible by ulysses_sequence_parallel_size 8", (),
         plan_of(actor=Fsdp(ulysses_size=8)), "actor.ulysses_size", 2),
        ("AssertionError: max_token_len must be greater than the sequence length", (),
         plan_of(batches=Batches(max_tokens_per_gpu=512)), "batches.max_tokens_per_gpu", 2048),
        ("rollout world_size: 1 is not divisible by infer_world_size: 2", (),
         plan_of(rollout=Rollout(tensor_parallel_size=4)), "rollout.tensor_parallel_size", 2),
        ("AssertionError: Got mini_batch_size=5 and self.engine.get_data_parallel_size()=8", (),
         plan_of(batches=Batches(mini_batch_size=3, train_batch_size=9)), "batches.train_batch_size", 8),
        ("WARN: grad_norm is not finite: nan", (), plan_of(actor=Fsdp(param_dtype="fp16")),
         "actor.param_dtype", "bf16"),
        ("ValueError: contains custom code which must be executed", (), plan_of(model=Model(id="x")),
         "model.trust_remote_code", True),
    ],
)  # fmt: skip
def test_the_first_fix(message: str, frames: tuple[str, ...], plan: Plan, path: str, value: object):
    found = diagnose(Evidence(message, frames), plan)
    assert found.fixes, found
    changes = {change.field: change.value for change in found.fixes[0].changes}
    if path == "batches.train_batch_size":
        # Worked out by hand: 8 ranks, n = 5: mini and train must be multiples of 8, and 9 prompts round up to 16.
        assert changes == {"batches.train_batch_size": 16, "batches.mini_batch_size": 8}
    else:
        assert changes[path] == value
    fixed = plan
    for change in found.fixes[0].changes:
        fixed = fixed.replace(change.field, change.value)
    assert fixed != plan


def test_an_unknown_error_is_said_to_be_unknown():
    found = diagnose(Evidence("ZebraError: stripes", ("zoo.py:feed",), step="forward"), Plan())
    assert found.cause == "unknown"
    assert "ZebraError: stripes" in found.what
    assert re.search(r"zoo\.py:feed", found.remedy)


def test_nccl_without_memory_on_an_h200():
    """As it was on a GPU that another process had filled (torch 2.11): the message has no reason, the figures have."""
    message = "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94"
    memory = {"allocated_bytes": 0, "reserved_bytes": 0, "free_bytes": 3670016, "total_bytes": 150109880320}
    found = diagnose(Evidence(message, memory=memory), Plan())
    assert found.cause == "gpu-oom-nccl"
    assert "139.8 GiB taken by the CUDA context and other processes" in found.what
    assert diagnose(Evidence(message, memory=memory | {"free_bytes": 70 << 30}), Plan()).cause == "nccl"


def test_memory_of_the_failed_process_is_told():
    memory = {"resident_bytes": 2 << 30, "cgroup_limit_bytes": 3 << 30, "cgroup_left_bytes": 1 << 29}
    found = diagnose(Evidence("RuntimeError: DefaultCPUAllocator: can't allocate memory", memory=memory), Plan())
    assert "The process held 2.0 GiB, its cgroup had 0.5 GiB left of 3.0 GiB" in found.what


def test_the_predictors_change_comes_first_where_the_model_is_known():
    name = "Qwen/Qwen2.5-7B-Instruct"
    machine = Machine(gpus_per_node=8, gpu_memory_bytes=24 << 30, gpu_free_bytes=24 << 30)
    plan = Plan(machine=machine, model=Model(id=name), architecture=preset(name))
    found = diagnose(Evidence("torch.OutOfMemoryError: CUDA out of memory.", ("torch/optim/adamw.py:step",)), plan)
    assert not predict(plan).fits_gpu
    assert predict(apply_fix(plan, found.fixes[0])).fits_gpu


def test_onednn_without_memory_is_told_from_a_shape_it_does_not_know():
    """Its message as torch 2.13 gave it in a backward under `ulimit -v`, with the figures of that moment."""
    message = "RuntimeError: could not create a primitive"
    full = {"address_space_bytes": 1_300_000_000, "address_space_limit_bytes": 1_394_335_744}
    assert diagnose(Evidence(message, memory=full), Plan()).cause == "host-oom"
    assert diagnose(Evidence(message, memory={"host_free_bytes": 20 << 30}), Plan()).cause == "unknown"
