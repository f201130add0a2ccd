"""The inspector as a real process: good models, bad input, foreign code, crashes, hangs, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_models import SETTINGS

from wizard.model import process as process_module
from wizard.model.consent import code_revision
from wizard.model.errors import ModelError, RemoteCodeConsentNeeded
from wizard.model.process import InspectorProcess
from wizard.model.protocol import architecture_from, request_line
from wizard.model.resolve import resolve_model

pytestmark = pytest.mark.asyncio(loop_scope="session")

QWEN = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **SETTINGS["qwen2"][1]}
AUTO_MAP = {"AutoConfig": "own_config.OwnConfig", "AutoModelForCausalLM": "own_model.OwnForCausalLM"}
OWN: dict[str, Any] = {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": AUTO_MAP}
OWN_CONFIG = """
from transformers import PretrainedConfig
class OwnConfig(PretrainedConfig):
    model_type = "own"
    def __init__(self, hidden_size=32, num_hidden_layers=4, experts=0, vocab_size=64, **more):
        self.hidden_size, self.num_hidden_layers, self.experts = hidden_size, num_hidden_layers, experts
        self.vocab_size = vocab_size
        super().__init__(**more)
"""
OWN_MODEL = """
import torch
from torch import nn
from transformers import PreTrainedModel
from .own_config import OwnConfig
{top}
class Expert(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.up = nn.Linear(config.hidden_size, 2 * config.hidden_size, bias=False)
        self.down = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = nn.MultiheadAttention(config.hidden_size, 2)
        self.experts = nn.ModuleList(Expert(config) for _ in range(max(1, config.experts)))
class OwnForCausalLM(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        {init}
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()
"""


def own(model_folder: Any, *, top: str = "", init: str = "pass", **settings: Any) -> str:
    folder: str = model_folder(
        {**OWN, **settings}, own_config=OWN_CONFIG, own_model=OWN_MODEL.format(top=top, init=init)
    )
    return folder


def agreed(folder: str) -> dict[str, Any]:
    """What somebody says who has read the folder's code."""
    return {"trust_remote_code": True, "revision": code_revision(Path(folder))}


BAD = {
    "truncated": (json.dumps(QWEN).encode()[:-20], r"config\.json:1: not JSON.*Download the file again"),
    "no JSON": (b"<html>404</html>", r"config\.json:1: not JSON"),
    "empty": (b"", r"config\.json:1: not JSON"),
    "binary": (b"\x80\x02\xff", r"config\.json: not UTF-8"),
    "a list": (b"[1, 2]", r"config\.json: holds list, not an object"),
    "deep": (b'{"a":' * 100_000, r"config\.json: nested too deeply"),
    "huge": (b'{"a": "' + b"x" * (5 << 20) + b'"}', r"config\.json: larger than 4 MiB"),
    "unknown type": ({"model_type": "qwen99"}, r"model_type is unknown to transformers .*newer transformers"),
    "no type": ({"hidden_size": 8}, r"model_type"),
    "many layers": ({**QWEN, "num_hidden_layers": 10**9}, r"num_hidden_layers = 1000000000 is not between 0 and 2,000"),
    "wide": ({**QWEN, "hidden_size": 10**12}, r"hidden_size = 1000000000000 is not between"),
    "negative": ({**QWEN, "vocab_size": -5}, r"vocab_size = -5 is not between"),
    "nested": (
        {"model_type": "gemma3", "text_config": {"intermediate_size": 10**11}},
        r"text_config\.intermediate_size = 100000000000",
    ),
    "all experts": (
        {"model_type": "qwen3_moe", "num_hidden_layers": 2000, "num_experts": 20000},
        r"num_hidden_layers = 2000 times num_experts = 20000",
    ),
    "a word for a size": ({**QWEN, "hidden_size": "wide"}, r"config\.json cannot be built.*hidden_size"),
    "heads that do not divide": ({"model_type": "gpt2", "n_embd": 10, "n_head": 3}, r"cannot be built.*divisible"),
    "no language model": ({"model_type": "vit"}, r"vit: transformers has no language model"),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_config_is_named_with_its_remedy(case: str, model_folder: Any, inspector: InspectorProcess) -> None:
    config, message = BAD[case]
    with pytest.raises(ModelError, match=f"(?s){message}"):
        await inspector.resolve(model_folder(config))


async def test_code_that_is_not_there(model_folder: Any, inspector: InspectorProcess) -> None:
    folder = model_folder(OWN)
    with pytest.raises(ModelError, match=r"names own_config\.py, which is not there"):
        await inspector.resolve(folder, **agreed(folder))


async def test_missing_folder_and_config(tmp_path: Path, inspector: InspectorProcess) -> None:
    with pytest.raises(ModelError, match=r"no such folder"):
        await inspector.resolve(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"config\.json: not found"):
        await inspector.resolve(str(tmp_path))
    with pytest.raises(ModelError, match=r"model\.id is empty"):
        await inspector.resolve("  ")


async def test_offline_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"not in the cache.*hf download someone/some-model"):
        await asyncio.to_thread(resolve_model, "someone/some-model")


async def test_cached_hub_model_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--someone--cached"
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "config.json").write_text(json.dumps(OWN))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    cached = InspectorProcess()
    try:
        with pytest.raises(RemoteCodeConsentNeeded) as needed:
            await cached.resolve("someone/cached")
        assert needed.value.revision == commit
        # Consent to another commit, or to none, is no consent to this one.
        with pytest.raises(RemoteCodeConsentNeeded, match=commit):
            await cached.resolve("someone/cached", trust_remote_code=True)
        with pytest.raises(ModelError, match="hub cannot be reached"):
            await cached.resolve("someone/cached", trust_remote_code=True, revision=commit)
        (repository / "snapshots" / commit / "own_config.py").write_text(OWN_CONFIG)
        (repository / "snapshots" / commit / "own_model.py").write_text(OWN_MODEL.format(top="", init="pass"))
        found = await cached.resolve("someone/cached", trust_remote_code=True, revision=commit)
        assert found.class_name == "OwnForCausalLM"
        (repository / "snapshots" / commit / "config.json").write_text(json.dumps(QWEN))
        assert (await cached.resolve("someone/cached")).num_layers == 3
    finally:
        await cached.close()


async def test_local_model_by_folder_and_by_file(model_folder: Any, inspector: InspectorProcess) -> None:
    folder = model_folder(QWEN)
    found = await inspector.resolve(folder)
    assert found == await inspector.resolve(f"{folder}/config.json")
    # Embedding, head; per layer q, k, v with bias, o, gate, up, down, two norms; the last norm. By hand.
    layer = (64 * 64 + 64) + 2 * (64 * 32 + 32) + 64 * 64 + 3 * 64 * 96 + 2 * 64
    assert found.parameters == 2 * 256 * 64 + 3 * layer + 64
    assert found.saved_bytes_per_token == pytest.approx(16 * 64 + 4 * 64 + 4 * 32 + 4 * 4 + 8 * 96, abs=8)


async def test_critic_is_a_token_classifier_with_one_label(model_folder: Any, inspector: InspectorProcess) -> None:
    folder = model_folder(QWEN)
    actor, critic = await inspector.resolve(folder), await inspector.resolve(folder, role="critic")
    assert critic.class_name == "Qwen2ForTokenClassification"
    assert critic.parameters == actor.parameters - 256 * 64 + 64 + 1


async def test_foreign_code_runs_only_after_consent(
    tmp_path: Path, model_folder: Any, inspector: InspectorProcess
) -> None:
    marker = tmp_path / "ran"
    folder = own(model_folder, top=f"open({str(marker)!r}, 'w').close()\nprint('noise on stdout')")
    with pytest.raises(RemoteCodeConsentNeeded, match=r"own_model\.py.*trust_remote_code=true") as needed:
        await inspector.resolve(folder)
    assert needed.value.files == ("own_config.py", "own_model.py")
    assert needed.value.classes == ("own_config.OwnConfig", "own_model.OwnForCausalLM")
    assert not marker.exists()
    with pytest.raises(RemoteCodeConsentNeeded):
        await inspector.resolve(folder, trust_remote_code=True)
    assert not marker.exists()
    revision = needed.value.revision
    found = await inspector.resolve(folder, trust_remote_code=True, revision=revision)
    assert marker.exists()
    assert found.remote_code
    assert found.no_split_modules is None or not found.no_split_modules
    # Served by structure: the model names no class itself.
    assert [entry.name for entry in found.layer_classes if entry.detected] == ["Layer"]
    # What was agreed to is these files: one that changes, and one that is added, are asked for again.
    marker.unlink()
    for file in ("own_model.py", "helper.py"):
        with (Path(folder) / file).open("a") as code:
            code.write("\n# another line\n")
        with pytest.raises(RemoteCodeConsentNeeded) as again:
            await inspector.resolve(folder, trust_remote_code=True, revision=revision)
        assert again.value.revision != revision
        revision = again.value.revision
    assert not marker.exists()


@pytest.mark.parametrize("auto_map", [["own_model.X"], "own_model.X", {"AutoTokenizer": [None, 1]}])
async def test_odd_auto_map_does_no_harm(auto_map: Any, model_folder: Any, inspector: InspectorProcess) -> None:
    found = await inspector.resolve(model_folder({**QWEN, "auto_map": auto_map}))
    assert found.num_layers == 3
    assert not found.remote_code


async def test_an_error_in_foreign_code_hides_secrets(model_folder: Any, inspector: InspectorProcess) -> None:
    token = "hf_" + "a1B2" * 8
    folder = own(model_folder, init=f"raise RuntimeError('cannot log in with {token}')")
    with pytest.raises(ModelError, match="cannot log in") as raised:
        await inspector.resolve(folder, **agreed(folder))
    assert token not in str(raised.value)


async def test_a_crash_is_told_and_the_next_question_answered(
    tmp_path: Path, model_folder: Any, inspector: InspectorProcess
) -> None:
    token = "hf_" + "c3D4" * 8
    folder = own(model_folder, init=f"import os; os.write(2, b'segfault near {token}'); os._exit(139)")
    with pytest.raises(ModelError, match="ended without an answer: segfault near") as raised:
        await inspector.resolve(folder, **agreed(folder))
    assert token not in str(raised.value)
    assert (await inspector.resolve(model_folder(QWEN))).num_layers == 3


async def test_a_hang_ends_at_the_time_limit(
    model_folder: Any, inspector: InspectorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own(model_folder, init="import threading; threading.Event().wait()")
    await inspector.warm()
    monkeypatch.setattr(process_module, "TIME_LIMIT_SECONDS", 1.0)
    with pytest.raises(ModelError, match="no answer within 1 s"):
        await inspector.resolve(folder, **agreed(folder))
    monkeypatch.undo()
    assert (await inspector.resolve(model_folder(QWEN))).num_layers == 3


async def test_a_wrong_interpreter_is_named() -> None:
    with pytest.raises(ModelError, match=r"/nowhere/python"):
        await InspectorProcess("/nowhere/python").resolve("someone/some-model")
    with pytest.raises(ModelError, match=r"/nowhere/python"):
        await asyncio.to_thread(resolve_model, "someone/some-model", python="/nowhere/python")


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("head -c 3000 /dev/urandom | tr '\\n' x; echo; echo '\033]0;owned\007'", "answered with something else|ended without"),
        ("exec yes", "answered with something else"),
        ("exec tr '\\0' x < /dev/zero", "ended without an answer"),
        ("kill -SEGV $$", "ended without an answer"),
    ],
)
async def test_an_interpreter_that_is_none_is_told(program: str, told: str, tmp_path: Path, model_folder: Any) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    with pytest.raises(ModelError, match=told):
        await asyncio.to_thread(resolve_model, model_folder(QWEN), python=str(python))


def cpu_seconds(process: psutil.Process) -> float:
    """Time on a core: what the wait would be on a machine that does nothing else."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def test_671b_takes_half_a_second_and_600_mb(model_folder: Any) -> None:
    fresh = InspectorProcess()
    folder = model_folder({"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]})
    try:
        await fresh.warm()
        assert fresh._process is not None
        process = psutil.Process(fresh._process.pid)
        before = cpu_seconds(process)
        found = await fresh.resolve(folder)
        assert found.parameters == 671_026_404_352
        # Half a second alone; on shared cores the same work takes more of their time.
        assert cpu_seconds(process) - before < 1.0
        assert process.memory_info().rss < 600e6
    finally:
        await fresh.close()


async def test_one_module_per_expert_takes_5_seconds(model_folder: Any) -> None:
    folder = own(model_folder, num_hidden_layers=58, experts=256)
    program = (
        "import sys, time\n"
        "from wizard.model import inspect\n"
        "answer = inspect._answer\n"
        "def timed(request):\n"
        "    start = time.process_time()\n"
        "    result = answer(request)\n"
        "    print(time.process_time() - start, file=sys.stderr)\n"
        "    return result\n"
        "inspect._answer = timed\n"
        "sys.exit(inspect.main([]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=request_line(folder, code_revision(Path(folder)), True, "actor"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stderr.splitlines()[-1]) < 5
    found = architecture_from(done.stdout.splitlines()[-1], folder)
    expert = next(entry for entry in found.layer_classes if entry.name == "Expert")
    assert (expert.count, expert.kind) == (58 * 256, "expert")


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_it_ends_with_the_wizard_that_started_it(tmp_path: Path) -> None:
    program = (
        "import asyncio\n"
        "from wizard.model.process import InspectorProcess\n"
        "async def main():\n"
        "    inspector = InspectorProcess()\n"
        "    await inspector.warm()\n"
        "    print(inspector._process.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    wizard = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert wizard.stdout is not None
    inspector_pid = int(wizard.stdout.readline())
    assert alive(inspector_pid)
    os.kill(wizard.pid, signal.SIGKILL)
    wizard.wait()
    deadline = time.monotonic() + 20
    while alive(inspector_pid):
        assert time.monotonic() < deadline, "the inspector outlived the wizard"
        await asyncio.sleep(0.05)


async def test_the_inspector_needs_only_torch_and_transformers(model_folder: Any) -> None:
    code = (
        "import sys\n"
        "class Only:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('msgspec', 'textual', 'omegaconf', 'ruamel', 'pynvml', 'verl', 'ray'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Only())\n"
        "from wizard.model.inspect import main\n"
        "sys.exit(main([]))\n"
    )
    request = {"model": model_folder(QWEN), "revision": "", "trust_remote_code": False, "role": "actor", "config": None}
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(request) + "\n", capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1])["architecture"]["num_layers"] == 3
