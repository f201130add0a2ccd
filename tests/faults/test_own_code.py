"""Faults in the Python files that a model brings along."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.faults.conftest import Bench, plan_of
from tests.faults.models import HEALTHY, change_config, consenting, with_own_code
from wizard.fixing import apply_fix
from wizard.model.errors import RemoteCodeConsentNeeded
from wizard.plan import Plan

pytest.importorskip("torch")
pytestmark = pytest.mark.fault
CODE = "modeling_mine.py"


def trusted(model: Path) -> Plan:
    return consenting(plan_of(model))


def forward(body: str) -> str:
    """Code of a model whose last layer's output goes through `body`, a function `change(h)`."""
    return (
        HEALTHY
        + f"""
    def __init__(self, config):
        super().__init__(config)
        self.model.layers[3].mlp.register_forward_hook(lambda module, inputs, h: change(h))


{body}
"""
    )


def test_nobody_agreed_to_run_the_code(bench: Bench, model: Path):
    plan = plan_of(with_own_code(model, HEALTHY))
    found = bench.fails("remote-code", plan)
    assert found.diagnosis is not None
    # The fix alone is no consent: what would run has not been shown yet.
    fixed = apply_fix(plan, found.diagnosis.fixes[0])
    with pytest.raises(RemoteCodeConsentNeeded) as needed:
        bench.run(fixed)
    bench.passes(fixed.replace("model.revision", needed.value.revision))
    (model / "helper.py").write_text("print('not what was shown')\n")
    with pytest.raises(RemoteCodeConsentNeeded, match=r"helper|modeling_mine\.py"):
        bench.run(fixed.replace("model.revision", needed.value.revision))


def test_code_that_raises(bench: Bench, model: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing of the run keeps what its message tells of a key, be it known by its form or by the environment."""
    secrets = ("hf_" + "aB3d" * 9, "0123456789abcdef" * 2)
    monkeypatch.setenv("WANDB_API_KEY", secrets[1])
    code = HEALTHY + f"    def __init__(self, config):\n        raise ZeroDivisionError('heads {secrets[0]} {secrets[1]}')\n"
    found = bench.fails("remote-code-error", trusted(with_own_code(model, code)))
    assert found.diagnosis is not None
    assert "ZeroDivisionError: heads" in found.diagnosis.what
    written = [file.read_bytes() for file in found.folder.iterdir() if file.is_file()]
    assert not [text for text in written for secret in secrets if secret.encode() in text]
    with_own_code(model, HEALTHY)
    bench.passes(trusted(model))


def test_code_that_is_not_there(bench: Bench, model: Path):
    with_own_code(model, HEALTHY)
    (model / CODE).unlink()
    found = bench.fails("remote-code-file", trusted(model))
    assert found.diagnosis is not None
    assert CODE in found.diagnosis.what
    with_own_code(model, HEALTHY)
    bench.passes(trusted(model))


def test_code_that_needs_a_package(
    bench: Bench, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with_own_code(model, "import causal_conv1d_of_nobody\n" + HEALTHY)
    found = bench.fails("package-missing", trusted(model))
    assert found.diagnosis is not None
    assert "causal_conv1d_of_nobody" in found.diagnosis.remedy
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "causal_conv1d_of_nobody.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(packages))
    bench.passes(trusted(model))


def test_detached_graph(bench: Bench, model: Path):
    found = bench.fails("no-gradient", trusted(with_own_code(model, forward("def change(h):\n    return h.detach()"))))
    assert found.diagnosis is not None
    assert "model.layers.3." in found.diagnosis.what
    with_own_code(model, HEALTHY)
    bench.passes(trusted(model))


def test_gradient_that_is_not_finite_although_the_loss_is(bench: Bench, model: Path):
    """The derivative of a square root at zero: a norm without its epsilon."""
    code = forward("def change(h):\n    return h + torch.sqrt((h * 0).abs())")
    found = bench.fails("non-finite-backward", trusted(with_own_code(model, code)))
    assert found.diagnosis is not None
    assert "model.layers.3.mlp" in found.diagnosis.what
    with_own_code(model, forward("def change(h):\n    return h + torch.sqrt((h * 0).abs() + 1e-12)"))
    bench.passes(trusted(model))


def test_tensor_that_is_no_buffer_stays_on_meta(bench: Bench, model: Path):
    code = HEALTHY + """
    def __init__(self, config):
        super().__init__(config)
        self.scale = torch.ones(config.vocab_size)

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * self.scale
        return output
"""
    bench.fails("meta-tensor", trusted(with_own_code(model, code)))
    with_own_code(model, code.replace("* self.scale", "* torch.ones_like(output.logits)"))
    bench.passes(trusted(model))


def test_layer_classes_that_the_code_does_not_name(bench: Bench, model: Path):
    """Without `_no_split_modules`, verl's fsdp makes one unit of the model and fsdp2 stops."""
    code = HEALTHY + """

MineForCausalLM.__mro__[2]._no_split_modules = None
"""
    plan = trusted(with_own_code(model, code))
    assert plan.architecture is not None
    plan = dataclasses.replace(plan, architecture=dataclasses.replace(plan.architecture, no_split_modules=None))
    _, fixed = bench.is_cured_by_its_first_fix("wrap-class-none", plan)
    assert fixed.actor.wrap_classes == ("Qwen2DecoderLayer",)


def test_config_of_a_class_the_code_lacks(bench: Bench, model: Path):
    with_own_code(model, HEALTHY)
    classes = {"AutoConfig": "modeling_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.MineLMHeadModel"}
    change_config(model, auto_map=classes)
    found = bench.fails("remote-code-class", trusted(model))
    assert found.diagnosis is not None
    assert "MineLMHeadModel" in found.diagnosis.what
    with_own_code(model, HEALTHY)
    bench.passes(trusted(model))
