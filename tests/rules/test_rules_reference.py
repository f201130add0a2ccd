"""The reference page is current, and `explain` prints what it holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wizard.cli import main
from wizard.rules import ALL_RULES

ROOT = Path(__file__).parents[2]


def test_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "rules_reference.py"), "--check"], cwd=ROOT, check=False
    )
    assert done.returncode == 0, "run tools/rules_reference.py"


def test_explain_prints_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "reduce-dtype"]) == 0
    out = capsys.readouterr().out
    assert "severity: error" in out
    assert "actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype" in out
    assert "source: verl 0.9.1" in out


def test_explain_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "reduce-dtyp"]) == 2
    assert "reduce-dtype" in capsys.readouterr().err


def test_explain_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert all(info.id in out for info in ALL_RULES)


def test_rules_import_neither_torch_nor_omegaconf() -> None:
    code = (
        "import sys; from wizard.rules import check_plan; from wizard.plan import Plan; check_plan(Plan()); "
        "heavy = ('torch', 'transformers', 'verl', 'ray', 'omegaconf', 'hydra', 'textual'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
