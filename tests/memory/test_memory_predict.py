"""What `predict` says of a Plan: phases, residues, budget, remedies, host memory."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_cases import MIDDLE, MOE, SMALL, Case
from measured_rows import architecture_of, replay

from wizard.facts import Machine
from wizard.fixing import apply_fix
from wizard.memory import Exact, PredictionError, predict
from wizard.memory.compare import compare
from wizard.memory.predict import actor_update_phase
from wizard.memory.roles import role_shape
from wizard.memory.rollout import CUDA_CONTEXT_BYTES
from wizard.memory.roofline import step_time
from wizard.plan import Algorithm, Fsdp, GpuGroup, Model, Placement, Plan

GIB = 2**30
BASE = Case()
BIG = Machine(gpus_per_node=8, gpu_memory_bytes=80 * GIB, gpu_free_bytes=80 * GIB, interconnect="nvlink")


def plan(case: Case = BASE, machine: Machine = BIG, **sections: Any) -> Plan:
    return replace(Plan(machine=machine, architecture=architecture_of(case)), **sections)


def test_phases_follow_the_algorithm() -> None:
    assert [phase.name for phase in predict(plan()).phases] == [
        *("actor_update", "log_prob", "ref_log_prob", "rollout", "weight_sync")
    ]
    ppo = predict(plan(algorithm=Algorithm(name="ppo", use_kl_loss=False)))
    assert [phase.name for phase in ppo.phases] == [
        *("actor_update", "log_prob", "critic_update", "rollout", "weight_sync")
    ]


def test_breakdowns_sum_to_the_peak() -> None:
    for phase in predict(plan(algorithm=Algorithm(name="ppo"))).phases:
        assert sum(phase.breakdown.values()) == pytest.approx(phase.peak_allocated_bytes, abs=8), phase.name
        assert phase.at
        assert phase.peak_reserved_bytes >= phase.peak_allocated_bytes


def test_without_architecture_says_what_to_do() -> None:
    with pytest.raises(PredictionError, match="inspect the model first"):
        predict(Plan(machine=BIG))


def test_unknown_wrap_class_is_a_prediction_error() -> None:
    with pytest.raises(PredictionError, match="NoSuchLayer"):
        predict(plan(actor=Fsdp(wrap_classes=("NoSuchLayer",))))


def test_optimizer_step_is_twenty_bytes_a_sharded_parameter() -> None:
    """4 parameter + 4 gradient + 8 Adam + 4 foreach square root; the rest is two cuBLAS workspaces."""
    phase = actor_update_phase(plan(), Exact(tokens=64, micro_batches=1))
    assert phase.at == "AdamW step"
    parameters = architecture_of(Case()).parameters
    assert phase.peak_allocated_bytes == pytest.approx(20 * parameters / 8 + 64 * 2**20, rel=1e-6)


def test_offload_flags_do_not_lower_the_update_but_the_rest() -> None:
    kept, offloaded = predict(plan()), predict(plan(actor=Fsdp(param_offload=True, optimizer_offload=True)))
    assert offloaded.phase("actor_update") == kept.phase("actor_update")
    shard = architecture_of(Case()).parameters // 8
    for name, saved in (("log_prob", 8 * shard), ("rollout", 12 * shard), ("weight_sync", 12 * shard)):
        before, after = kept.phase(name), offloaded.phase(name)
        assert before
        assert after
        assert before.peak_allocated_bytes - after.peak_allocated_bytes == pytest.approx(saved, rel=1e-6), name
    assert offloaded.host_bytes_per_node - kept.host_bytes_per_node == pytest.approx(12 * shard * 8, rel=1e-6)


def test_fsdp1_loads_its_whole_shard_for_the_weight_sync() -> None:
    offload = Fsdp(param_offload=True, optimizer_offload=True)
    sync2 = predict(plan(actor=offload)).phase("weight_sync")
    sync1 = predict(plan(actor=replace(offload, strategy="fsdp"))).phase("weight_sync")
    assert sync1
    assert sync2
    shard = 4 * architecture_of(Case()).parameters // 8
    assert sync1.peak_allocated_bytes - sync2.peak_allocated_bytes == shard


def test_reference_needs_no_parameters_of_its_own_on_the_gpu() -> None:
    """verl forces CPU offload on forward-only engines; what is left are the actor's."""
    own = predict(plan(actor=Fsdp(param_offload=True, optimizer_offload=True))).phase("ref_log_prob")
    assert own
    assert "parameters" not in own.breakdown
    assert "optimizer" not in own.breakdown


def test_roles_apart_do_not_add_up() -> None:
    together = plan(algorithm=Algorithm(name="ppo"))
    apart = replace(
        together,
        placement=Placement((GpuGroup(("actor", "rollout", "ref"), 1, 4), GpuGroup(("critic",), 1, 4))),
    )
    critic = predict(apart).phase("critic_update")
    assert critic
    assert critic.breakdown["optimizer"] < 8.1 * architecture_of(Case()).parameters / 4


def test_a_group_holds_its_own_roles_and_nothing_of_the_others() -> None:
    """With as many ranks as before, what a role needs shrinks by what the others left on its GPUs: the sharded states
    of the trained ones (fp32 weights and two Adam moments), the sleeping engine's graphs and its CUDA context."""
    together = plan(algorithm=Algorithm(name="ppo"))
    groups = (GpuGroup(("actor", "rollout"), 1, 8), GpuGroup(("critic",), 1, 8), GpuGroup(("ref",), 1, 8))
    wide = replace(BIG, gpus_per_node=24)
    apart = predict(replace(together, machine=wide, placement=Placement(groups)))
    [whole] = predict(together).groups
    assert [phase.name for phase in whole.phases] == [phase.name for phase in apart.phases]
    assert [[phase.name for phase in group.phases] for group in apart.groups] == [
        ["actor_update", "log_prob", "rollout", "weight_sync"], ["critic_update"], ["ref_log_prob"]
    ]  # fmt: skip
    parameters = architecture_of(Case()).parameters
    states = {"actor": 12 * parameters / 8, "critic": 12 * role_shape(together, "critic").parameters / 8}
    engine = 2**30 + CUDA_CONTEXT_BYTES
    left = {
        "actor_update": states["critic"], "log_prob": states["critic"], "rollout": states["critic"],
        "weight_sync": states["critic"], "critic_update": states["actor"] + engine,
        "ref_log_prob": states["actor"] + states["critic"] + engine,
    }  # fmt: skip
    for phase in whole.phases:
        alone = apart.phase(phase.name)
        assert alone
        assert phase.needed_bytes - alone.needed_bytes == pytest.approx(left[phase.name], rel=1e-6), phase.name
    for group in apart.groups:
        assert group.peak
        assert group.peak.needed_bytes == max(phase.needed_bytes for phase in group.phases)


def test_half_the_ranks_double_a_roles_shard() -> None:
    ppo = plan(algorithm=Algorithm(name="ppo"))
    sizes = []
    for gpus in (4, 2):
        groups = (GpuGroup(("actor", "rollout", "ref"), 1, 4), GpuGroup(("critic",), 1, gpus))
        phase = predict(replace(ppo, placement=Placement(groups))).phase("critic_update")
        assert phase
        sizes.append(phase.breakdown["parameters"])
    assert sizes[1] == pytest.approx(2 * sizes[0])


def test_the_host_counts_the_ranks_a_node_has_of_each_role() -> None:
    """A critic over two of a node's eight GPUs keeps one copy of its states on the host, not four."""
    offloaded = Fsdp(param_offload=True, optimizer_offload=True)
    ppo = plan(algorithm=Algorithm(name="ppo", use_kl_loss=False), critic=offloaded)
    groups = (GpuGroup(("actor", "rollout"), 1, 6), GpuGroup(("critic",), 1, 2))
    host = predict(replace(ppo, placement=Placement(groups))).host_breakdown
    assert host["offloaded state"] == pytest.approx(12 * role_shape(ppo, "critic").parameters)


def test_rollout_takes_its_share_of_the_gpu() -> None:
    phase = predict(plan(actor=Fsdp(param_offload=True, optimizer_offload=True))).phase("rollout")
    assert phase
    assert phase.breakdown["rollout_weights"] == 2 * architecture_of(Case()).parameters
    assert phase.breakdown["rollout_weights"] + phase.breakdown["kv_cache"] == 40 * GIB


def test_tied_weights_are_counted_once() -> None:
    shape = role_shape(plan(SMALL), "actor")
    assert shape.parameters == architecture_of(SMALL).parameters == 494_032_768


def test_experts_need_their_whole_layer_gathered() -> None:
    phase = actor_update_phase(plan(MOE), Exact(tokens=4096, micro_batches=1))
    layer = role_shape(plan(MOE), "actor").blocks[0].parameters
    assert phase.breakdown["unsharded"] >= 2 * 2 * layer


def test_budget_is_the_largest_that_fits() -> None:
    prediction = predict(plan())
    budget = prediction.largest_token_budget
    assert budget
    held = actor_update_phase(plan(), Exact(tokens=budget)).needed_bytes
    assert held <= 80 * GIB
    assert held > 79 * GIB


def test_remedies_make_it_fit() -> None:
    tight = plan(
        machine=Machine(gpus_per_node=8, gpu_memory_bytes=40 * GIB),
        model=Model(gradient_checkpointing=False),
    )
    prediction = predict(tight)
    assert prediction.fits is False
    assert prediction.remedies
    for fix in prediction.remedies:
        assert predict(apply_fix(tight, fix)).fits_gpu, fix.label


def test_what_fits_needs_no_remedy() -> None:
    assert predict(plan()).fits
    assert predict(plan()).remedies == ()


def test_unknown_machine_is_not_judged() -> None:
    prediction = predict(plan(machine=Machine()))
    assert prediction.fits is None
    assert prediction.largest_token_budget is None


def test_tied_model_is_loaded_by_every_rank() -> None:
    tied = predict(plan(MIDDLE, actor=Fsdp())).host_breakdown
    assert tied["loading weights"] == 8 * 4 * architecture_of(MIDDLE).parameters
    one = predict(replace(plan(), trainer=replace(Plan().trainer, save_freq=-1))).host_breakdown
    assert one["loading weights"] == 4 * architecture_of(Case()).parameters


def test_predict_is_fast_enough_for_a_keystroke() -> None:
    chosen = plan(Case(layers=80, hidden=8192, heads=64, kv_heads=8, intermediate=29568))
    seconds = []
    for _ in range(8):
        start = time.process_time()
        predict(chosen)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.1, "50 ms alone; the test machine's cores are shared"


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(64, 32768),
    more=st.integers(1, 8192),
    strategy=st.sampled_from(["fsdp", "fsdp2"]),
    case=st.sampled_from([Case(layers=4), SMALL, MOE]),
    checkpointing=st.booleans(),
)
def test_more_tokens_never_need_less(tokens: int, more: int, strategy: Any, case: Case, checkpointing: bool) -> None:
    chosen = plan(case, actor=Fsdp(strategy=strategy), model=Model(gradient_checkpointing=checkpointing))
    few = actor_update_phase(chosen, Exact(tokens, 1)).peak_allocated_bytes
    assert actor_update_phase(chosen, Exact(tokens + more, 1)).peak_allocated_bytes >= few


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.sampled_from([2, 4, 8, 16, 32]),
    strategy=st.sampled_from(["fsdp", "fsdp2"]),
    case=st.sampled_from([Case(layers=4), SMALL, MIDDLE, MOE]),
    micro_batches=st.integers(1, 4),
    no_sync=st.booleans(),
)
def test_more_ranks_never_need_more(ranks: int, strategy: Any, case: Case, micro_batches: int, no_sync: bool) -> None:
    actor = Fsdp(strategy=strategy, no_sync=no_sync)

    def peak(world: int) -> int:
        chosen = plan(case, machine=Machine(gpus_per_node=world), actor=actor)
        return actor_update_phase(chosen, Exact(4096, micro_batches)).peak_allocated_bytes

    assert peak(2 * ranks) <= peak(ranks)


@settings(max_examples=30, deadline=None)
@given(micro_batches=st.integers(2, 5), strategy=st.sampled_from(["fsdp", "fsdp2"]))
def test_no_sync_keeps_a_whole_gradient(micro_batches: int, strategy: Any) -> None:
    """fp32 under fsdp2, bf16 under fsdp, on every rank, whatever the micro-batches."""
    case = Case(layers=16, strategy=strategy, tokens=1024, micro_batches=micro_batches)
    synced, kept = (replay(replace(case, no_sync=no_sync)).peaks["fwd"] for no_sync in (False, True))
    parameters = architecture_of(case).parameters
    # The synced run holds its sharded fp32 gradients by then, the other none yet.
    expected = (4 if strategy == "fsdp2" else 2) * parameters - 4 * parameters / 8
    assert kept.total_bytes - synced.total_bytes == pytest.approx(expected, rel=0.01)


def test_difference_is_put_down_to_a_cause() -> None:
    prediction = predict(plan())
    phase = prediction.phase("actor_update")
    assert phase
    near = compare(prediction, {"actor_update": round(phase.peak_allocated_bytes * 1.05)})[0]
    assert near.cause == ""
    without = compare(prediction, {"actor_update": phase.peak_allocated_bytes - phase.breakdown["optimizer"]})[0]
    assert without.cause == "optimizer"
    assert "before the first step" in without.explanation
    assert compare(prediction, {"no_such_phase": 1}) == ()


def test_step_time_names_what_it_assumes() -> None:
    found = step_time(plan(), Exact(tokens=8192, micro_batches=1))
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert found.bound_by in found.parts
    assert any("H100" in line for line in found.assumptions)
    slower = step_time(replace(plan(), actor=Fsdp(offload_policy=True)), Exact(tokens=8192, micro_batches=1))
    assert slower.seconds > found.seconds


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_layers_left_out_of_the_wrap_are_gathered_with_the_root(strategy: Any) -> None:
    case = Case(layers=8)
    wrapped = actor_update_phase(plan(case, actor=Fsdp(strategy=strategy)), Exact(1024, 1))
    left_out = actor_update_phase(
        plan(case, actor=Fsdp(strategy=strategy, wrap_classes=("Qwen2Attention",))), Exact(1024, 1)
    )
    assert left_out.peak_allocated_bytes > wrapped.peak_allocated_bytes + 2 * 2**30
    assert left_out.breakdown["unsharded"] > 2 * 0.8 * architecture_of(case).parameters


def test_an_engine_share_that_the_weights_outgrow_does_not_fit() -> None:
    """vLLM refuses to start without room for the cache of one longest sequence, however much of the GPU is free."""
    small = plan(machine=Machine(gpus_per_node=8, gpu_memory_bytes=80 * GIB))
    small = small.replace("rollout.gpu_memory_utilization", 0.15)
    prediction = predict(small)
    rollout = prediction.phase("rollout")
    assert rollout
    assert rollout.lacking_bytes > 2 * GIB
    assert prediction.fits is False
    assert predict(apply_fix(small, prediction.remedies[0])).fits
