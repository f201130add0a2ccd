"""Launch scripts in all kinds of bash: what they would start is seen, and nothing of it starts.

A `python` that leaves a mark stands in every place from which a script may take one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from wizard.verl.capture import CaptureError, capture

MAIN = "verl.trainer.main_ppo"
SCRIPTS = {
    "activated environment, array, function, pipe": (
        "set -xeuo pipefail\nsource {venv}/bin/activate\nARGS=(data.train_batch_size=256 'a b')\nrun() {{ \"$@\"; }}\n"
        'HYDRA_FULL_ERROR=1 run python3 -m verl.trainer.main_ppo x=1 "${{ARGS[@]}}" "$@" 2>&1 | tee log\n',
        ["x=1", "data.train_batch_size=256", "a b", "extra=it's"],
    ),
    "a path in a variable, substitution, redirection": (
        "set -e\nexport PATH={venv}/bin:$PATH\nPY={venv}/bin/python\nX=1 \"$PY\" -m verl.trainer.main_ppo "
        'x=$(echo 1) y="a b" > out.txt\n',
        ["x=1", "y=a b"],
    ),
    "an emptied environment": ("env -i PATH={venv}/bin:/bin python3 -m verl.trainer.main_ppo c=1\n", ["c=1"]),
    "exec with a relative path": (
        'cd {venv}/..\nexec venv/bin/python3 -m verl.trainer.main_ppo d=1 "$@"\n', ["d=1", "extra=it's"]
    ),
    "sessions, subshells, conditions, defaults": (
        "if {venv}/bin/ray status; then echo ok; fi\n( setsid {venv}/bin/python -m verl.trainer.main_ppo e=1 & )\n"
        "[ -x {venv}/bin/python ] && ${{PYX:-{venv}/bin/python}} -m verl.trainer.main_ppo e=2\n",
        None,
    ),
    "a here document, conda, continued lines": (
        "set -euo pipefail\nconda activate verl || true\neval \"$(conda shell.bash hook)\"\n"
        "{venv}/bin/python3 - <<PY\nprint('never')\nPY\nCMD='python3 -m verl.trainer.main_ppo'\n"
        "$CMD \\\n  data.train_files=\"['/a b/x.parquet']\" \\\n  z=1 2>&1 | tee log\n",
        ["data.train_files=['/a b/x.parquet']", "z=1"],
    ),
    "a script that another one sources": (
        "cat > inner.sh <<'SH'\nsource {venv}/bin/activate\npython -m verl.trainer.main_ppo i=1 \"$@\"\nSH\n"
        "source inner.sh j=2\n",
        ["i=1", "j=2"],
    ),
    "a script that another one starts": (
        "cat > inner.sh <<'SH'\n{venv}/bin/python -m verl.trainer.main_ppo k=1\nSH\nbash inner.sh\n", ["k=1"]
    ),
    "torchrun, as a string through srun": ('srun bash -c "python3 -m verl.trainer.main_ppo s=1"\n', ["s=1"]),
    "a job submitted to Ray": (
        "ray job submit --address x -- python3 -m verl.trainer.main_ppo r=1 'list=[1,2]'\n", ["r=1", "list=[1,2]"]
    ),
    "the file instead of the module": ("python3 {venv}/verl/trainer/main_ppo.py f=1\n", ["f=1"]),
}  # fmt: skip


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment whose programs leave a mark when they really run."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "python3", "ray", "torchrun"):
        program = folder / "bin" / name
        program.write_text(f"#!/bin/sh\ntouch {tmp_path}/STARTED\n")
        program.chmod(0o755)
    (folder / "bin" / "activate").write_text(f"export PATH={folder}/bin:$PATH\n")
    return folder


@pytest.mark.parametrize("kind", SCRIPTS)
def test_script(kind: str, venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text, overrides = SCRIPTS[kind]
    script = tmp_path / "my run.sh"
    script.write_text("#!/usr/bin/env bash\n" + text.format(venv=venv))
    monkeypatch.chdir(tmp_path)
    calls = capture(["bash", str(script), "extra=it's"], 30)
    assert calls.training is not None, calls.others
    if overrides is not None:
        words = list(calls.training.argv)
        start = words.index(MAIN) + 1 if MAIN in words else 1
        assert words[start : start + len(overrides)] == overrides
    assert not (tmp_path / "STARTED").exists()


def test_a_script_of_another_language_is_refused_and_not_run(tmp_path: Path):
    script = tmp_path / "run.py"
    script.write_text(f"#!/usr/bin/env python3\nopen({str(tmp_path / 'STARTED')!r}, 'w')\n")
    script.chmod(0o755)
    for command in ([str(script)], ["python3", str(script)]):
        with pytest.raises(CaptureError):
            capture(command, 10)
    assert not (tmp_path / "STARTED").exists()


def test_a_script_that_never_ends_is_stopped(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text("while true; do :; done\n")
    with pytest.raises(CaptureError, match="stopped"):
        capture(["bash", str(script)], 1)


def test_a_script_that_fails_first_says_why(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text("set -u\necho $NOT_SET_AT_ALL\n")
    with pytest.raises(CaptureError, match="NOT_SET_AT_ALL"):
        capture(["bash", str(script)], 10)
