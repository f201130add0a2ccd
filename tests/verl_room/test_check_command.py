"""`verl-wizard check`: what it reads, what it prints for people and for CI, its exit codes, and `--fix`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wizard.cli import main
from wizard.findings import Severity, Stage
from wizard.rules import ALL_RULES
from wizard.verl.importer import import_file
from wizard.verl.overrides import parse_override

A = "actor_rollout_ref.actor"
R = "actor_rollout_ref.rollout"

FAULTY = """\
# Run of March; do not change the seed!
data:
  train_batch_size: 30  # prompts
  seed: 7  # mine
actor_rollout_ref:
  model: {path: Qwen/Qwen2.5-7B-Instruct}
  actor:
    strategy: fsdp2
    grad_offload: true  # from an old guide
    ppo_mini_batch_size: 64
    fsdp_config:
      param_ofload: true   # typo
  rollout:
    name: vllm
    tensor_model_parallel_size: 1

# the machine
trainer: {n_gpus_per_node: 8, nnodes: 1}
"""


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    path = tmp_path / "my.yaml"
    path.write_text(FAULTY, encoding="utf-8")
    return path


def findings(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, list[dict[str, Any]]]:
    code = main(["check", "--json", *map(str, arguments)])
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"findings"}
    return code, found["findings"]


def test_json_has_the_documented_form(faulty: Path, capsys: pytest.CaptureFixture[str]):
    code, found = findings(capsys, faulty)
    assert code == 1
    rules = {rule.id for rule in ALL_RULES}
    for finding in found:
        assert finding.keys() == {"id", "severity", "field", "value", "message", "stage", "fixes"}
        assert finding["id"] in rules
        assert finding["severity"] in {severity.value for severity in Severity}
        assert finding["stage"] in {stage.value for stage in Stage}
        assert all(fix.keys() == {"field", "value"} for fix in finding["fixes"])
    severities = [finding["severity"] for finding in found]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    typo = next(finding for finding in found if finding["field"] == f"{A}.fsdp_config.param_ofload")
    assert (typo["id"], typo["severity"], typo["value"], typo["stage"]) == ("unknown-key", "error", True, "driver")
    assert typo["fixes"] == [{"field": f"{A}.fsdp_config.param_offload", "value": True}]
    gone = next(finding for finding in found if finding["field"] == f"{A}.grad_offload")
    assert gone["fixes"] == [{"field": f"~{A}.grad_offload", "value": None}]


def test_people_see_file_line_and_remedy(faulty: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", str(faulty)]) == 1
    out = capsys.readouterr().out
    assert f"ERROR {A}.fsdp_config.param_ofload = true ({faulty}:12)  [unknown-key]" in out
    assert f"ERROR {A}.grad_offload = true ({faulty}:9)" in out
    assert f"fix: remove it: ~{A}.grad_offload" in out
    assert out.splitlines()[-1].startswith("verl 0.9.1: ")


def test_fix_keeps_comments_shows_a_diff_and_passes(faulty: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", str(faulty), "--fix"]) == 0
    out = capsys.readouterr().out
    fixed = faulty.with_name("my.yaml.fixed")
    assert faulty.read_text(encoding="utf-8") == FAULTY
    text = fixed.read_text(encoding="utf-8")
    assert f"--- {faulty}\n+++ {fixed}\n" in out
    assert "-    grad_offload: true" in out
    for kept in ("# Run of March; do not change the seed!", "seed: 7  # mine", "# prompts", "# the machine"):
        assert kept in text
    assert "model: {path: Qwen/Qwen2.5-7B-Instruct}" in text
    assert "param_offload: true" in text
    assert "grad_offload" not in text
    assert main(["check", str(fixed)]) == 0
    capsys.readouterr()
    # A second time there is nothing left to change, and what is written is the same.
    assert main(["check", str(fixed), "--fix"]) == 0
    assert "nothing to change" in capsys.readouterr().out


def test_fix_never_replaces_without_consent(faulty: Path, capsys: pytest.CaptureFixture[str]):
    target = faulty.with_name("my.yaml.fixed")
    target.write_text("mine\n", encoding="utf-8")
    assert main(["check", str(faulty), "--fix"]) == 2
    assert "exists and differs" in capsys.readouterr().err
    assert target.read_text(encoding="utf-8") == "mine\n"
    assert main(["check", str(faulty), "--fix", "--out", str(faulty)]) == 2
    assert faulty.read_text(encoding="utf-8") == FAULTY
    assert main(["check", str(faulty), "--fix", "--overwrite"]) == 0
    assert "param_offload" in target.read_text(encoding="utf-8")


def test_fix_into_a_folder_that_cannot_be_written(faulty: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", str(faulty), "--fix", "--out", str(faulty.parent / "no" / "such" / "x.yaml")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_json_stays_json_with_fix(faulty: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", "--json", "--fix", str(faulty)]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out).keys() == {"findings"}
    assert "+      param_offload: true" in streams.err


FILES = {
    "aliases": "x: &e {param_ofload: true}\n# kept\nactor_rollout_ref:\n  actor: {strategy: fsdp2, fsdp_config: *e}\n"
               "  ref: {fsdp_config: *e}\n",
    "merge keys": "x: &e {param_ofload: true}\nactor_rollout_ref:\n  actor:\n    fsdp_config:\n      <<: *e\n"
                  "      fsdp_size: 8\n# kept\n",
    "CRLF": "# kept\r\nactor_rollout_ref:\r\n  actor: {grad_offload: true} # c\r\n  rollout: {name: vllm}\r\n",
    "wide indents": "actor_rollout_ref:\n        actor:\n                grad_offload: true\n                strategy: fsdp2\n"
                    "trainer:\n        logger:\n            - console\n# kept\n",
    "a comment of what goes": "actor_rollout_ref:\n  actor:\n    # kept\n    grad_offload: true\n# kept too\n",
    "a scalar for a block": "actor_rollout_ref: 3\n# kept\n",
    "a document's marks": "%YAML 1.1\n---\n# kept\nactor_rollout_ref: {actor: {grad_offload: true}}\n...\n",
    "words of YAML 1.1": "actor_rollout_ref: {actor: {grad_offload: yes, use_dynamic_bsz: on}, rollout: {n: 010}} # kept\n",
    "Hydra's own": "defaults: [ppo_trainer, _self_]  # kept\nhydra: {searchpath: [pkg://verl.trainer.config]}\n"
                   "actor_rollout_ref: {actor: {grad_offload: true}}\n",
    "JSON": '{"actor_rollout_ref": {"actor": {"grad_offload": true, "strategy": "fsdp2"}}}',
    "values of the person's own": "n: 8  # kept\nactor_rollout_ref: {rollout: {n: '${n}'}, actor: {grad_offload: true}}\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_fix_of_all_kinds_of_files(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The corrected file says what it said before, less what was wrong, in the form it had."""
    path, out = tmp_path / "x.yaml", tmp_path / "out.yaml"
    path.write_bytes(FILES[kind].encode())
    main(["check", str(path), "--fix", "--out", str(out), "--model", "Qwen/Qwen2.5-7B-Instruct"])
    capsys.readouterr()
    before, after = import_file(path).config, import_file(out).config
    text = out.read_bytes().decode()
    assert ("\r\n" in text) == (kind == "CRLF")
    assert "\r\r" not in text
    assert text.count("# kept") == FILES[kind].count("# kept")
    assert "grad_offload" not in text
    assert f"{A}.fsdp_config.param_ofload" not in after.given
    wrong = ("grad_offload", "param_ofload", "actor_rollout_ref")
    for key in before.given:
        if not key.endswith(wrong):
            assert after.raw(key) == before.raw(key)
    if kind == "JSON":
        json.loads(text)
    if kind == "wide indents":
        assert "\n        actor:\n                strategy: fsdp2\n" in text
    if kind == "Hydra's own":
        assert text.startswith("defaults: [ppo_trainer, _self_]  # kept\nhydra: {searchpath: [pkg://verl.trainer.config]}\n")
    _, found = findings(capsys, out)
    assert [f for f in found if f["fixes"] and f["severity"] == "error"] == []


OVERRIDES = (
    f"{R}.name=vllm", "actor_rollout_ref.model.path='/data/my model'", "algorithm.adv_estimator=grpo",
    f"{A}.grad_offload=true", f"{A}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap=[Qwen2DecoderLayer]",
    f"{A}.fsdp_config.param_ofload=true", "trainer.logger=['console','wandb']", f"+{A}.optim.lr=1e-6",
    f"{R}.tensor_model_parallel_size=1",
)  # fmt: skip


def test_fixed_overrides_are_overrides_again(capsys: pytest.CaptureFixture[str]):
    assert main(["check", "--fix", "--", *OVERRIDES]) == 0
    streams = capsys.readouterr()
    fixed = streams.out.splitlines()
    read = {parse_override(text).key: parse_override(text) for text in fixed}
    assert read["actor_rollout_ref.model.path"].value == "/data/my model"
    assert read[f"{A}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap"].mode == "+"
    assert read[f"{A}.fsdp_config.param_offload"].value is True
    assert read[f"{A}.optim.lr"].mode == ""
    assert f"{A}.grad_offload" not in read
    assert main(["check", "--", *fixed]) == 0


@pytest.mark.verl
def test_what_fix_writes_is_accepted_by_hydra(capsys: pytest.CaptureFixture[str], hydra_compose: Any):
    main(["check", "--fix", "--", *OVERRIDES])
    config = hydra_compose(capsys.readouterr().out.splitlines())
    assert config.actor_rollout_ref.actor.fsdp_config.param_offload is True
    assert config.actor_rollout_ref.model.path == "/data/my model"


def test_a_list_of_overrides_stays_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / ".hydra"
    folder.mkdir()
    (folder / "overrides.yaml").write_text("".join(f"- {json.dumps(text)}\n" for text in OVERRIDES), encoding="utf-8")
    code, found = findings(capsys, tmp_path)
    assert code == 1
    assert {f"{A}.grad_offload", f"{A}.fsdp_config.param_ofload"} <= {finding["field"] for finding in found}
    out = tmp_path / "fixed.yaml"
    assert main(["check", str(folder / "overrides.yaml"), "--fix", "--out", str(out)]) == 0
    capsys.readouterr()
    assert findings(capsys, out)[0] == 0


def test_a_plan_is_mended_as_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plan = ("generate", "--model", "Qwen/Qwen2.5-7B-Instruct", "--gpus", "8x80GB", "--out", str(tmp_path))
    assert main([*plan]) == 0
    path = tmp_path / "verl-wizard.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("ulysses_size: 1", "ulysses_size: 3", 1), encoding="utf-8")
    capsys.readouterr()
    code, found = findings(capsys, tmp_path)
    assert code == 1
    assert any("ulysses" in finding["field"] for finding in found if finding["severity"] == "error")
    out = tmp_path / "fixed.yaml"
    assert main(["check", str(path), "--fix", "--out", str(out)]) == 0
    from wizard.plan_file import load_plan

    assert 8 % load_plan(out).actor.ulysses_size == 0
    assert load_plan(out).architecture == load_plan(path).architecture


def test_a_plans_groups_are_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["generate", "--model", "tiny", "--gpus", "4x80GB", "--algorithm", "ppo", "--out", str(tmp_path)]) == 0
    path = tmp_path / "verl-wizard.yaml"
    twice = "[{roles: [actor, rollout], nodes: 1, gpus_per_node: 2}, {roles: [critic, actor], nodes: 1, gpus_per_node: 2}]"
    path.write_text(path.read_text(encoding="utf-8").replace("groups: []", f"groups: {twice}", 1), encoding="utf-8")
    capsys.readouterr()
    code, found = findings(capsys, path)
    assert code == 1
    assert "placement-twice" in {finding["id"] for finding in found}
    assert main(["check", str(path), "--fix", "--out", str(tmp_path / "fixed.yaml")]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((".",), "holds neither"),
        (("nowhere.yaml",), "No such file"),
        (("binary",), "binary"),
        (("empty.yaml",), "empty"),
        (("plan.yaml",), "fsdp9"),
        (("good.yaml", "--gpus", "many"), "many"),
        (("good.yaml", "--gpus", "8x80GB", "--nodes", "0"), "nodes"),
        (("good.yaml", "--model", "/no/such"), "/no/such"),
        (("good.yaml", "--verl-version", "0.3"), "0.3"),
        (("good.yaml", "--verl-version", "new"), "new"),
        ((), "give a file"),
    ],
)
def test_what_cannot_be_checked_exits_with_2(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "empty.yaml").write_bytes(b"")
    (tmp_path / "good.yaml").write_text("trainer: {nnodes: 1}\n")
    (tmp_path / "plan.yaml").write_text("target: {}\nmachine: {}\nbatches: {}\nactor: {strategy: fsdp9}\n")
    assert main(["check", *arguments]) == 2
    streams = capsys.readouterr()
    assert said in streams.err
    assert streams.out == ""


def test_values_that_json_has_no_word_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "x.yaml"
    path.write_text(
        f"data: {{train_batch_size: {10**30}, foo: .nan, bar: -.inf, baz: {{1: [.inf]}}}}\n"
        "trainer: {n_gpus_per_node: 99999999999999999999, nnodes: .nan}\nactor_rollout_ref: 3\n"
    )
    code, found = findings(capsys, path)
    assert code == 1
    values = {finding["field"]: finding["value"] for finding in found}
    assert values["data.foo"] == "nan"
    assert values["data.baz"] == {"1": ["inf"]}


def test_any_value_anywhere_gives_findings_never_a_crash(capsys: pytest.CaptureFixture[str]):
    from wizard.verl.schema import load_schema

    values = ("null", "-1", "0", "1e400", "nan", "x", "[]", "[null]", "{}", "{a:{b:1}}", "true", "9" * 25, "'${x}'")
    for index, key in enumerate(sorted(load_schema().keys)):
        value = values[index % len(values)]
        assert main(["check", "--json", "--gpus", "8x80GB", "--", f"{R}.name=vllm", f"++{key}={value}"]) in (0, 1)
        json.loads(capsys.readouterr().out)


def test_checking_is_quick_and_light(faulty: Path):
    """The contract is 300 ms of wall time. Processor time is measured, which other work on the machine changes less."""
    code = (
        "import sys, wizard.cli as c\nc.main(['check', sys.argv[1]])\n"
        "heavy = ('torch', 'transformers', 'verl', 'ray', 'numpy', 'omegaconf', 'hydra', 'antlr4', 'textual', 'ruamel')\n"
        "print([m for m in heavy if m in sys.modules], file=sys.stderr)"
    )
    seconds = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", code, faulty], capture_output=True, text=True, check=False)
        after = os.times()
        assert done.stderr == "[]\n"
        seconds.append(after.children_user - before.children_user + after.children_system - before.children_system)
    assert min(seconds) < 0.6


def test_hostile_text_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "x.yaml"
    path.write_text('actor_rollout_ref:\n  actor: {strategy: "\\e]0;owned\\a", "\\e[31mkey": 1}\n')
    assert main(["check", str(path)]) == 1
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.verl
@pytest.mark.slow
def test_a_fixed_file_is_accepted_by_verl(faulty: Path, tmp_path: Path):
    fixed = tmp_path / "verl_fixed.yaml"
    assert main(["check", str(faulty), "--fix", "--out", str(fixed)]) == 0
    code = (
        "import sys\nfrom omegaconf import OmegaConf\nfrom hydra import compose, initialize_config_dir\nimport verl, os\n"
        "from verl.utils.config import validate_config\n"
        "from verl.trainer.ppo.utils import need_critic, need_reference_policy\n"
        "with initialize_config_dir(os.path.join(os.path.dirname(verl.__file__), 'trainer', 'config'), version_base=None):\n"
        "    base = compose('ppo_trainer')\n"
        "OmegaConf.set_struct(base, False)\n"
        "config = OmegaConf.merge(base, OmegaConf.load(sys.argv[1]))\n"
        "config.algorithm.adv_estimator = 'grpo'\n"
        "validate_config(config, need_reference_policy(config), need_critic(config))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, fixed], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_documentation_names_every_stage_and_severity():
    text = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
    for word in (*Stage, *Severity):
        assert f"`{word.value}`" in text
