"""Faults of launches that are not ours: torchrun's rendezvous, Hydra and verl's own checks, read from their logs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wizard.diagnosis.diagnose import Diagnosis, diagnose_log
from wizard.diagnosis.log_lines import read_lines
from wizard.facts import Machine
from wizard.fixing import apply_fix
from wizard.plan import Batches, Plan
from wizard.verl.export import plan_to_overrides
from wizard.verl.overrides import override_text

pytest.importorskip("torch")
pytestmark = pytest.mark.fault
GROUP = """
import datetime, os, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(os.environ.get("SECONDS", 20))))
dist.barrier()
"""


CHECKS = """
import sys
from hydra import compose, initialize_config_module
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
with initialize_config_module("verl.trainer.config", version_base=None):
    config = compose("ppo_trainer", overrides=sys.argv[1:])
validate_config(config, need_reference_policy(config), need_critic(config))
"""
"""What verl 0.9.1 `trainer/main_ppo.py` does before Ray starts."""


def logged(folder: Path, *command: str, **environment: str) -> tuple[int, Diagnosis | None]:
    """Run a command as a person would, with its output in a file, and diagnose the file."""
    log = folder / "train.log"
    with log.open("wb") as stream:
        done = subprocess.run(
            command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, env={**os.environ, **environment},
            cwd=folder, check=False, timeout=120,
        )  # fmt: skip
    with log.open("rb") as stream:
        return done.returncode, diagnose_log(read_lines(stream), Plan())


@pytest.fixture
def taken_port() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def rank(folder: Path, port: int, number: int, world: int, seconds: float) -> tuple[int, Diagnosis | None]:
    return logged(
        folder, sys.executable, "-c", GROUP, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number),
        WORLD_SIZE=str(world), SECONDS=str(seconds),
    )  # fmt: skip


def test_port_that_another_program_holds(tmp_path: Path, taken_port: socket.socket):
    port = taken_port.getsockname()[1]
    code, found = rank(tmp_path, port, 0, 1, 20)
    assert code != 0
    assert found is not None
    assert found.cause == "port-in-use", found
    taken_port.close()
    assert rank(tmp_path, port, 0, 1, 20) == (0, None)


def test_address_where_nobody_listens(tmp_path: Path, taken_port: socket.socket):
    port = taken_port.getsockname()[1]
    taken_port.close()
    code, found = rank(tmp_path, port, 1, 2, 2)
    assert code != 0
    assert found is not None
    assert found.cause == "rendezvous", found
    with (tmp_path / "rank0.log").open("wb") as stream:
        first = subprocess.Popen(
            [sys.executable, "-c", GROUP], stdout=stream, stderr=stream,
            env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "2"},
        )  # fmt: skip
    assert rank(tmp_path, port, 1, 2, 60) == (0, None)
    assert first.wait(60) == 0


def checked(folder: Path, plan: Plan) -> tuple[int, Diagnosis | None]:
    """Let verl compose and check what the Plan exports; keys of no field are given as a person would give them."""
    own = dict(plan.extra_overrides)
    given = [override_text(key, value, "" if key in own else "++") for key, value in plan_to_overrides(plan).items()]
    code, _ = logged(folder, sys.executable, "-c", CHECKS, *given, CUDA_VISIBLE_DEVICES="")
    with (folder / "train.log").open("rb") as stream:
        return code, diagnose_log(read_lines(stream), plan)


@pytest.mark.verl
def test_verl_refuses_the_configuration_for_one_reason_after_the_other(tmp_path: Path):
    pytest.importorskip("verl", reason="verl is not installed in this interpreter")
    plan = Plan(
        machine=Machine(gpus_per_node=8), batches=Batches(train_batch_size=3, mini_batch_size=3, dynamic=False),
        extra_overrides=(("actor_rollout_ref.actor.grad_offload", True),),
    )  # fmt: skip
    for cause in ("hydra-unknown-key", "batch-not-divisible"):
        code, found = checked(tmp_path, plan)
        assert code != 0
        assert found is not None
        assert found.cause == cause, found
        plan = apply_fix(plan, found.fixes[0])
    code, found = checked(tmp_path, plan)
    assert code == 0, found
