"""What lies in a run folder may have been written by a model's own code, or cut off by a full disk: any of it is a
value or an error of ours, and every event that is let in can be judged, drawn and told."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from wizard.debugging.compare import Observed
from wizard.diagnosis import diagnose_verdict
from wizard.plan import Plan
from wizard.validation.event_text import event_text
from wizard.validation.events import KINDS, MAX_LINE_BYTES, parse_line
from wizard.validation.run_folder import NoRun, read_result, read_spec_of
from wizard.validation.signs import READ_BYTES, EventReader, Heartbeats
from wizard.validation.spec import ValidationSpec, write_spec
from wizard.validation.verdict import RunState

MANY = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.sampled_from(
    ["seconds", "pid", "phase", "message", "exception", "frames", "memory", "loss", "step_seconds", "gradient_norm",
     "parameters", "peak_allocated_bytes", "resident_bytes", "tokens_per_second", "mfu", "cause", "local_parameters"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["nan", "-inf"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.fixed_dictionaries(
    {"kind": st.sampled_from(sorted(KINDS)), "rank": st.integers(-1, 3), "time": VALUES},
    optional={"step": st.sampled_from(["load", "forward", "", "\x1b[2J"]), "data": st.dictionaries(NAMES, VALUES), "node": VALUES},
)  # fmt: skip


@MANY
@given(found=st.lists(EVENTS, max_size=6))
@example(found=[{"kind": "metric", "rank": 0, "time": 10**400, "data": {"pid": "x"}}])
@example(found=[{"kind": "failure", "rank": 1, "time": 1, "data": {"frames": 5, "memory": "full"}}])
@example(found=[{"kind": "memory", "rank": 0, "time": 1, "data": {"phase": "load", "resident_bytes": 10**400}}])
def test_every_event_that_is_let_in_can_be_judged_and_told(found: list[dict[str, Any]]):
    state, observed = RunState(range(2), 60, 0.0), Observed()
    for index, data in enumerate(found):
        event = parse_line(json.dumps(data))
        if event is not None:
            state.feed(event, float(index))
            observed.feed(event)
            assert "\x1b" not in event_text(event)
    verdict = state.verdict(100.0) or state.ended(1, "", cancelled=False)
    diagnose_verdict(verdict, Plan())


@MANY
@given(data=st.binary(max_size=300))
@example(data=b"[" * 100_000)
@example(data=b'{"outcome": "failed", "failure": {"memory": 3, "frames": {"a": 1}}}')
@example(data=b'{"outcome": "lost", "rank": "one"}')
def test_results_and_specs_of_any_bytes(data: bytes, tmp_path: Path):
    for name in ("result.json", "spec.json"):
        (tmp_path / name).write_bytes(data)
    with suppress(NoRun):
        read_spec_of(tmp_path)
    with suppress(NoRun):
        verdict = read_result(tmp_path)
        if verdict is not None:
            diagnose_verdict(verdict, Plan())


@given(changes=st.fixed_dictionaries({"world_size": st.integers(1, 9), "tokens": st.integers(1, 9), "notes": st.tuples(st.text())}))
def test_a_saved_spec_is_read_as_it_was(changes: dict[str, Any], tmp_path_factory: Any):
    folder = tmp_path_factory.mktemp("run")
    spec = ValidationSpec(model="", model_config={"a": [1]}, device="cpu", strategy="fsdp2", **changes)
    write_spec(spec, folder / "spec.json")
    assert read_spec_of(folder) == spec


def test_a_flood_neither_fills_the_memory_nor_hides_what_follows(tmp_path: Path):
    file = tmp_path / "rank0.jsonl"
    good = b'{"kind": "log", "rank": 0, "time": 1, "data": {"message": "after"}}\n'
    other = good.replace(b'"rank": 0', b'"rank": 7')
    file.write_bytes(b"x" * (3 * READ_BYTES) + b"\n" + other + good)
    reader = EventReader(tmp_path, range(2))
    reads = [reader.read()]
    assert not reader.caught_up
    while not reader.caught_up:
        assert len(reader._rests[0]) <= MAX_LINE_BYTES + 1
        reads.append(reader.read())
    assert [event.data["message"] for read in reads for event in read] == ["after"]


def test_a_clock_that_jumps_makes_no_living_rank_silent_and_no_dead_one_alive(tmp_path: Path):
    beats = Heartbeats(tmp_path, range(2))
    files = [tmp_path / f"rank{rank}.alive" for rank in range(2)]
    for file in files:
        file.touch()
    beats.silent_seconds(100.0)
    # The clock is set back a day, then forward a year; rank 1 has been dead since its first sign.
    for now, stamp in ((101.0, 1e9), (102.0, 1e9 - 86400), (130.0, 4e9)):
        os.utime(files[0], (stamp, stamp))
        assert beats.silent_seconds(now) == {0: 0.0, 1: now - 100.0}
