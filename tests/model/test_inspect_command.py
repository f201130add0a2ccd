"""`verl-wizard inspect`: data on stdout, messages on stderr, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from wizard.cli import main
from wizard.facts import Architecture
from wizard.model.catalog import preset


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "Qwen/Qwen3-30B-A3B"]) == 0
    shown = capsys.readouterr()
    assert "30,532,122,624" in shown.out
    assert "8 of 128" in shown.out
    assert "Qwen3MoeDecoderLayer" in shown.out
    assert shown.err == ""


def test_json_is_the_whole_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "tiny", "--json"]) == 0
    found = msgspec.convert(json.loads(capsys.readouterr().out), Architecture)
    assert found == preset("tiny")


def test_an_error_is_one_message_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{")
    assert main(["inspect", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "config.json:1: not JSON" in shown.err
    assert len(shown.err.splitlines()) == 1


def test_hostile_names_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{tmp_path}/\x1b[2Jx"]) == 1
    assert "\x1b" not in capsys.readouterr().err
