"""Whatever comes from outside ends in a value or in the parser's own error, never in another exception."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from wizard.diagnosis.diagnose import diagnose_log
from wizard.diagnosis.log_lines import read_lines
from wizard.model.config_file import check_sizes, read_config, remote_code
from wizard.model.errors import ModelError
from wizard.placing import PlacementError, parse_groups
from wizard.plan import Plan, PlanError, field_specs, parse_value
from wizard.plan_file import load_plan
from wizard.probe.machine import MachineError, parse_machine
from wizard.text import printable
from wizard.validation.events import Event, parse_line, to_line

HOSTILE = "\x1b]0;x\x07$(id)`id`'\"[bold]\n\u202e\x00" + "9" * 400
MANY = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("parser", "error"), [(parse_machine, MachineError), (parse_groups, PlacementError), (parse_line, ())]
)
@MANY
@given(text=st.text(max_size=80) | st.from_regex(r"\d*[x×]?\d*(GB|H100)?(,(cc|ram|cpus)=?[\w.]*)*", fullmatch=True))
@example(text=HOSTILE)
@example(text="8x80GB," * 500)
def test_texts(parser: Callable[[str], Any], error: Any, text: str):
    with suppress(*([error] if error else [])):
        parser(text)


@MANY
@given(path=st.sampled_from(sorted(field_specs())), text=st.text(max_size=60))
@example(path="batches.train_batch_size", text="9" * 5000)
@example(path="batches.learning_rate", text="nan")
def test_values_of_fields(path: str, text: str):
    with suppress(PlanError):
        Plan().replace(path, parse_value(path, text))


@MANY
@given(data=st.binary(max_size=400))
@example(data=b"[" * 50_000)
@example(data=b"a: &a [*a]")
@example(data=b"? {? {}: {}}: !!python/object:os.system {}")
def test_files_that_are_no_plan(data: bytes, tmp_path: Path):
    path = tmp_path / "plan.yaml"
    path.write_bytes(data)
    with pytest.raises(PlanError, match=r"plan\.yaml"):
        load_plan(path)


@MANY
@given(data=st.binary(max_size=300))
@example(data=b"[" * 100_000)
@example(data=b'{"a":' * 5000)
def test_files_that_are_no_config(data: bytes, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with suppress(ModelError):
        read_config(path)


@MANY
@given(config=st.dictionaries(st.sampled_from(["auto_map", "num_hidden_layers", "vocab_size", "x"]), JSON, max_size=4))
def test_configs_of_any_shape(config: dict[str, Any]):
    remote_code(config)
    with suppress(ModelError):
        check_sizes(config, "config.json")


@MANY
@given(data=JSON, rank=st.integers(-3, 9), step=st.text(max_size=8))
def test_events_survive_their_own_line(data: Any, rank: int, step: str):
    line = to_line(Event("metric", rank, 1.5, step, {"value": data}))
    assert line.count("\n") == 1
    found = parse_line(line)
    assert found is not None
    assert (found.rank, found.step) == (rank, step)


@MANY
@given(data=st.binary(max_size=2000))
def test_logs(data: bytes):
    diagnose_log(read_lines(io.BytesIO(data)), Plan())


@given(text=st.text())
@example(text=HOSTILE)
def test_nothing_that_steers_a_terminal_is_printable(text: str):
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in printable(text))
