"""What is kept of measurements: budgets, machines, and the page."""

from __future__ import annotations

from pathlib import Path

from tools.bench.document import BEGIN, END, write_document
from tools.bench.results import Result, keep, kept, machine_name, rows


def test_budgets_hold_the_value_or_its_ratio_to_the_peer() -> None:
    alone = Result("keys", "p95", 51.0, "ms", 50.0)
    beside = Result("validation", "step", 1.01, "s", 1.02, "bare", 1.0)
    slower = Result("validation", "step", 1.05, "s", 1.02, "bare", 1.0)
    no_budget = Result("inspector", "time", 9.0, "s", None, "peer", 3.0)
    assert [each.met for each in (alone, beside, slower, no_budget)] == [False, True, False, None]
    assert rows([no_budget]) == [("inspector: time", "9 s", "3 s (peer)", "3.000×", "", "")]
    assert rows([alone])[0][-2:] == ("≤ 50 ms", "MISSED")


def test_a_machine_is_named_by_what_it_is() -> None:
    assert machine_name("AMD EPYC", 2, "") == "amd-epyc-2-cpus"
    assert machine_name("Intel(R) Xeon(R) CPU @ 2.60GHz", 16, "1 NVIDIA H200") == (
        "intel-xeon-cpu-2.60ghz-16-cpus-1-nvidia-h200"
    )


def test_groups_that_were_not_measured_again_stay(tmp_path: Path) -> None:
    first = [Result("idle", "step 1", 0.0, "B/s", 0.0), Result("keys", "p95", 60.0, "ms", 50.0)]
    path = keep(first, tmp_path)
    again = Result("keys", "p95", 40.0, "ms", 50.0)
    assert keep([again], tmp_path) == path
    assert kept(path) == [first[0], again]
    page = tmp_path / "bench.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_document(page, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| keys: p95 | 40 ms |" in text
