"""Our verdict against verl's own, configuration by configuration and over random ones."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rule_bench import ACTOR, CRITIC, DYNAMIC, FSDP1, MODEL, PPO, REF, ROLLOUT, config_of, facts, fixed
from rule_table import BROKEN, Broken

from wizard.findings import Finding, Severity, Stage
from wizard.model.tiny import ensure_tiny
from wizard.rules import check_config

pytestmark = [
    pytest.mark.verl,
    pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed in this interpreter"),
]
EARLY = (Stage.COMPOSITION, Stage.DRIVER, Stage.WORKERS)


class Oracle:
    """verl in a process of its own."""

    def __init__(self, log: Path) -> None:
        self.log = log.open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("verl_oracle.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )  # fmt: skip
        assert "ready" in self._answer(), log.read_text()[-3000:]

    def ask(self, **question: Any) -> dict[str, str]:
        """Return stage and error of verl's refusal, an empty answer where it accepts."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, Path(self.log.name).read_text()[-3000:]
        found: dict[str, str] = json.loads(line)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.log.close()


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    found = Oracle(tmp_path_factory.mktemp("oracle") / "log")
    yield found
    found.close()


@pytest.fixture(scope="module")
def tiny() -> dict[str, Any]:
    folder = str(ensure_tiny(sys.executable))
    # Without vLLM verl refuses every LoRA rank for vLLM; SGLang takes the same path up to its start.
    return {f"{MODEL}.path": folder, f"{CRITIC}.model.path": folder, f"{ROLLOUT}.name": "sglang"}


def early_errors(values: Mapping[str, Any], without: tuple[str, ...] = ()) -> list[Finding]:
    found = check_config(config_of(values, without=without), facts(model="tiny"))
    return [f for f in found if f.severity is Severity.ERROR and f.stage in EARLY]


def asked(values: Mapping[str, Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
    return dict(config_of(values, without=without).given)


ON_TINY = {
    "wrap-class-missing": {f"{ACTOR}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap": ["qwen2decoderlayer"]},
    "ulysses-heads": {
        f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": 8,
        f"{REF}.fsdp_config.ulysses_sequence_parallel_size": 8,
    },
}
"""Rows whose values are of a 7B model, said of the built-in one (4 heads, 2 key-value heads)."""
NOT_VERLS = {
    "rollout-engine-missing", "peft-missing", "flash-attn-missing", "critic-flash-attn", "remote-code", "host-memory",
    "liger-missing", "visible-devices", "lora-rank-limit", "model-path-default", "lora-size-wrap",
    "rollout-name", "wrap-no-default",
    "wrap-nested",
}  # fmt: skip
"""Rules about packages, machines and other models than the oracle has; vLLM's own limit; what needs real FSDP1, or
ranks that really shard (tests/validation has that one)."""
EARLY_ROWS = [
    case
    for case in BROKEN
    if case.severity == "error" and case.stage in ("driver", "workers") and case.id not in NOT_VERLS
]


@pytest.mark.parametrize("case", EARLY_ROWS, ids=lambda case: f"{case.id} {case.note}".strip())
def test_verl_refuses_what_we_refuse_and_accepts_the_fix(case: Broken, oracle: Oracle, tiny: dict[str, Any]) -> None:
    changes = {**case.changes, **tiny, **ON_TINY.get(case.id, {})}
    if f"{ROLLOUT}.name" in case.changes:
        changes[f"{ROLLOUT}.name"] = case.changes[f"{ROLLOUT}.name"]
    config = config_of(changes, without=case.without)
    refused = oracle.ask(values=dict(config.given))
    assert refused.get("stage") == case.stage, refused
    for _ in range(6):
        errors = [
            f for f in check_config(config, facts(model="tiny")) if f.severity is Severity.ERROR and f.stage in EARLY
        ]
        if not errors:
            break
        config = fixed(config, errors[0], errors[0].fixes[0])
    assert oracle.ask(values=dict(config.given)) == {}


@pytest.mark.parametrize(
    "changes", [{}, DYNAMIC, PPO, {**PPO, **DYNAMIC}, FSDP1], ids=["grpo", "dynamic", "ppo", "both", "fsdp"]
)
def test_verl_accepts_the_good_configuration(changes: dict[str, Any], oracle: Oracle, tiny: dict[str, Any]) -> None:
    assert oracle.ask(values=asked({**changes, **tiny})) == {}


@pytest.mark.parametrize(
    ("override", "refused"),
    [
        (f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype=fp32", True),
        (f"+{ACTOR}.fsdp_config.mixed_precision.reduce_dtype=fp32", False),
        (f"+{ACTOR}.fsdp_config.model_dtype=fp32", True),
        (f"{ACTOR}.fsdp_config.grad_offload=true", True),
        ("critic.model.fsdp_config.param_offload=true", True),
        (f"++{ACTOR}.fsdp_config.anything=1", False),
    ],
)
def test_hydra_composes_as_we_say(override: str, refused: bool, oracle: Oracle) -> None:
    from wizard.verl.config import Assignment, VerlConfig
    from wizard.verl.overrides import parse_override
    from wizard.verl.schema import load_schema

    said = parse_override(override)
    config = VerlConfig(load_schema("0.9.1"), [Assignment(said.key, said.value, said.mode, override)])
    ours = [f for f in check_config(config, facts()) if f.id == "hydra-refuses"]
    assert bool(ours) == refused
    assert (oracle.ask(overrides=[override]).get("stage") == "composition") == refused


SIZES = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64])
CLASSES = st.sampled_from(
    [["Qwen2DecoderLayer"], ["Qwen2DecoderLayer", "Nowhere"], ["qwen2decoderlayer"], "Qwen2DecoderLayer", [], None]
)
DTYPES = st.sampled_from(["fp32", "bf16", "fp16", "bfloat16", "half", "float32"])
MUTATIONS: dict[str, st.SearchStrategy[Any]] = {
    "data.train_batch_size": SIZES,
    f"{ACTOR}.ppo_mini_batch_size": SIZES,
    f"{ACTOR}.use_dynamic_bsz": st.booleans(),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": st.one_of(st.none(), SIZES),
    f"{ACTOR}.ppo_micro_batch_size": st.one_of(st.none(), SIZES),
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": st.one_of(st.none(), SIZES),
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": st.booleans(),
    f"{REF}.log_prob_micro_batch_size_per_gpu": st.one_of(st.none(), SIZES),
    f"{ACTOR}.use_kl_loss": st.booleans(),
    f"{ACTOR}.strategy": st.sampled_from(["fsdp", "fsdp2", "fsdp3"]),
    f"{ACTOR}.ulysses_sequence_parallel_size": st.sampled_from([1, 2, 3, 4, 8]),
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": st.sampled_from([1, 2, 3, 4, 8]),
    f"{REF}.fsdp_config.ulysses_sequence_parallel_size": st.sampled_from([1, 2, 4]),
    f"{MODEL}.use_remove_padding": st.booleans(),
    f"{ACTOR}.fsdp_config.fsdp_size": st.sampled_from([-1, 0, 1, 2, 3, 4, 8, 16]),
    f"{ACTOR}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap": CLASSES,
    f"{ACTOR}.fsdp_config.wrap_policy.min_num_params": st.sampled_from([0, 0, 1000]),
    f"{ACTOR}.fsdp_config.model_dtype": DTYPES,
    f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype": DTYPES,
    f"{ACTOR}.fsdp_config.param_ofload": st.booleans(),
    f"{ACTOR}.loss_agg_mode": st.sampled_from(["token-mean", "seq-mean-token-sum", "token_mean"]),
    f"{ACTOR}.optim.lr_scheduler_type": st.sampled_from(["constant", "cosine", "linear"]),
    f"{ROLLOUT}.n": st.sampled_from([1, 2, 3, 4, 8]),
    f"{ROLLOUT}.tensor_model_parallel_size": st.sampled_from([1, 2, 3, 4, 8]),
    f"{ROLLOUT}.pipeline_model_parallel_size": st.sampled_from([1, 1, 2]),
    f"{ROLLOUT}.expert_parallel_size": st.sampled_from([1, 1, 2, 4]),
    f"{ROLLOUT}.mode": st.sampled_from(["async", "sync", "server"]),
    f"{ROLLOUT}.temperature": st.sampled_from([0.0, 1.0]),
    f"{ROLLOUT}.val_kwargs.do_sample": st.booleans(),
    f"{MODEL}.target_modules": st.sampled_from(["all-linear", ["q_proj"], [1], 3]),
    "algorithm.adv_estimator": st.sampled_from(["grpo", "gae", "rloo", "grop"]),
    "algorithm.use_kl_in_reward": st.booleans(),
    "algorithm.adv_estimater": st.just("grpo"),
    "critic.strategy": st.sampled_from(["fsdp", "fsdp2", "fsdp3"]),
    "critic.ppo_mini_batch_size": SIZES,
    "critic.ppo_micro_batch_size_per_gpu": st.one_of(st.none(), SIZES),
    "critic.fsdp.fsdp_size": st.sampled_from([-1, 0, 2, 3]),
    "critic.fsdp.ulysses_sequence_parallel_size": st.sampled_from([1, 2, 3]),
    "critic.model.use_remove_padding": st.booleans(),
    "trainer.n_gpus_per_node": st.sampled_from([1, 2, 4, 6, 8]),
    "trainer.nnodes": st.sampled_from([1, 1, 2]),
}
SPOILED = st.lists(st.sampled_from(sorted(MUTATIONS)), min_size=1, max_size=5, unique=True).flatmap(
    lambda keys: st.fixed_dictionaries({key: MUTATIONS[key] for key in keys})
)


@pytest.mark.slow
@settings(
    max_examples=80, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(start=st.sampled_from([{}, DYNAMIC, PPO, {**PPO, **DYNAMIC}, FSDP1]), spoiled=SPOILED)
def test_random_configurations(
    start: Mapping[str, Any], spoiled: Mapping[str, Any], oracle: Oracle, tiny: dict[str, Any]
) -> None:
    values = {**start, **spoiled, **tiny}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = early_errors(values), oracle.ask(values=asked(values))
    assert bool(ours) == bool(theirs), (spoiled, [(f.id, f.field) for f in ours], theirs)
    if theirs:
        assert theirs["stage"] in {f.stage.value for f in ours} or theirs["stage"] == "workers", (ours, theirs)
