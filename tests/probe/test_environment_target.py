"""The target interpreter is asked for real; targets that are absent, hang, flood or die give rows, never a crash."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from wizard.probe.ask import NoAnswer, ask
from wizard.probe.environment import read_environment
from wizard.probe.gpu_report import GpuReport
from wizard.probe.versions import ORDER, Row, State

NO_GPUS = GpuReport("absent", "NVML Shared Library Not Found")


def wait_until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        threading.Event().wait(0.02)


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def rows_of(python: str, seconds: float = 60) -> dict[str, Row]:
    report = read_environment(python, seconds, gpus=NO_GPUS)
    assert tuple(row.name for row in report.rows) == ORDER
    return {row.name: row for row in report.rows}


def package(folder: Path, module: str, distribution: str, version: str, code: str) -> None:
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").write_text(code)
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")


def test_this_interpreter() -> None:
    rows = rows_of("")
    for name in ("torch", "transformers", "numpy"):
        assert rows[name].version == importlib.metadata.version(name)
    assert rows["python"].version == ".".join(map(str, sys.version_info[:3]))
    assert rows["transformers"].state is State.OK
    assert rows["cuda"].state is State.OK


def test_an_interpreter_with_nothing_names_what_to_install(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = str(tmp_path / "bare/bin/python")
    rows = rows_of(python)
    assert rows["python"].state is State.OK
    assert (rows["torch"].state, rows["transformers"].state, rows["verl"].state) == (State.FAIL, State.FAIL, State.WARN)
    assert rows["torch"].install == f"uv pip install --python {python} 'torch>=2.4'"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 3", "exit code 3"),
        ("echo hello; exit 0", "hello"),
        ("echo 'verl-wizard-report:{broken'", "gave a broken report"),
        ("exit 0", "is not a Python"),
        ("echo 'verl-wizard-report:{}'", "missing required field"),
        ("kill -SEGV $$", "SIGSEGV"),
        ("printf '\\033[31mred\\033[0m'", "[31mred"),
        ("exec yes", "MiB without a report"),
    ],
)
def test_a_target_that_is_no_python(tmp_path: Path, body: str, said: str) -> None:
    row = rows_of(script(tmp_path / "python", body))["python"]
    assert row.state is State.FAIL
    assert said in row.reason
    assert "\x1b" not in row.reason


@pytest.mark.parametrize("python", ["/nonexistent/python", "/", "bad\0name"])
def test_a_target_that_cannot_be_started(python: str) -> None:
    row = rows_of(python)["python"]
    assert row.state is State.FAIL
    assert "cannot be started" in row.reason


def test_a_target_that_hangs_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    row = rows_of(script(tmp_path / "python", f"echo $$ > {pid}; exec sleep 1000"), seconds=1)["python"]
    assert "no answer within 1 s" in row.reason
    assert not psutil.pid_exists(int(pid.read_text()))


def test_waiting_can_be_stopped(tmp_path: Path) -> None:
    stop = threading.Event()
    started = tmp_path / "started"
    python = script(tmp_path / "python", f"touch {started}; exec sleep 1000")

    def stop_when_started() -> None:
        wait_until(started.exists)
        stop.set()

    thread = threading.Thread(target=stop_when_started)
    thread.start()
    with pytest.raises(NoAnswer, match="stopped"):
        ask(python, "wizard.probe.installed", ["torch"], timeout_seconds=60, stop=stop)
    thread.join()


def test_a_broken_flash_attn_that_kills_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "flash_attn", "flash-attn", "2.8.3", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row = rows_of("")["flash-attn"]
    assert (row.version, row.state) == ("2.8.3", State.FAIL)
    assert "SIGSEGV" in row.reason
    assert "--no-build-isolation" in row.install


def test_a_flash_attn_built_for_another_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('noise')\nraise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi')\n"
    package(tmp_path, "flash_attn", "flash-attn", "2.8.3", code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row = rows_of("")["flash-attn"]
    assert row.state is State.FAIL
    assert "undefined symbol" in row.reason


def test_a_verl_checkout_on_the_path_has_its_version(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    folder = tmp_path / "checkout/verl/version"
    folder.mkdir(parents=True)
    (folder / "version").write_text("0.9.1\n")
    (folder.parent / "__init__.py").write_text("raise RuntimeError('not imported')\n")
    python = script(tmp_path / "python", f'PYTHONPATH={tmp_path / "checkout"} exec {tmp_path / "bare/bin/python"} "$@"')
    assert rows_of(python)["verl"].version == "0.9.1"


def test_a_killed_asker_leaves_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)\n"
    package(tmp_path / "path", "torch", "torch", "2.13.0", code)
    question = "from wizard.probe.ask import ask; ask('', 'wizard.probe.installed', ['torch'], timeout_seconds=600)"
    asker = subprocess.Popen(
        [sys.executable, "-c", question],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "path")},
    )
    wait_until(lambda: pid.exists() and pid.read_text() != "")
    child = psutil.Process(int(pid.read_text()))
    os.kill(asker.pid, signal.SIGKILL)
    asker.wait()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from wizard.cli import main; code = main(['doctor', *sys.argv[1:]]); "
        "assert not {'torch', 'transformers', 'verl', 'ray', 'textual'} & set(sys.modules); sys.exit(code)"
    )
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


def test_doctor_as_json_never_imports_what_it_reports() -> None:
    done = doctor("--json")
    report = json.loads(done.stdout)
    states = [row["state"] for row in report["environment"]["rows"]]
    assert done.stderr == ""
    assert done.returncode == (1 if "fail" in states else 0)
    assert report["host"]["memory_bytes"] > 0


def test_doctor_fails_on_an_absent_interpreter_and_says_so() -> None:
    done = doctor("--python", "/nonexistent/python")
    assert done.returncode == 1
    assert "/nonexistent/python cannot be started: No such file or directory" in done.stdout
