"""Logs as verl's runs print them: driver, Ray prefixes, several workers interleaved; the first cause is to be found.

Shapes follow public reports: verl-project/verl issues 5750 (NCCL timeout, then dead actors), 2987 and 4921 (a worker
is gone and Ray does not know why), 302 (rollout wake-up), 3453 (Ray's memory monitor), 2515 (missing node).
"""

import io
import time
import tracemalloc

import pytest

from wizard.diagnosis.diagnose import Diagnosis, diagnose_log
from wizard.diagnosis.log_lines import read_lines
from wizard.plan import Plan

CYAN, PLAIN = "\x1b[36m", "\x1b[0m"


def diagnosed(text: str) -> Diagnosis | None:
    return diagnose_log(read_lines(io.BytesIO(text.encode())), Plan())


def worker(pid: int, *lines: str) -> str:
    return "".join(f"{CYAN}(WorkerDict pid={pid}, ip=10.0.0.7){PLAIN} {line}\n" for line in lines)


DEAD_ACTOR = """\
Error executing job with overrides: ['data.train_batch_size=256']
Traceback (most recent call last):
  File "/opt/verl/trainer/main_ppo.py", line 241, in run
    trainer.fit()
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict
\tpid: 20174
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process \
is killed by SIGKILL by OOM killer due to high memory usage.
"""


def test_out_of_memory_in_a_worker_under_the_drivers_traceback():
    log = (
        worker(1, "step 3 done")
        + "Traceback (most recent call last):\n"
        + '  File "/opt/verl/trainer/main_ppo.py", line 94, in run\n    trainer.fit()\n'
        + "ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.actor_update_actor() (pid=118848)\n"
        + '  File "/opt/verl/workers/engine/fsdp/transformer_impl.py", line 700, in forward_step\n    self.forward()\n'
        + '  File "/opt/verl/utils/torch_functional.py", line 150, in entropy_from_logits\n    pd = softmax(logits)\n'
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB. GPU 0 has 79.1 GiB\n"
    )
    found = diagnosed(log)
    assert found is not None
    assert found.cause == "gpu-oom-logits"
    assert found.fixes[0].changes[0].field == "actor.entropy_chunking"


def test_interleaved_workers_keep_their_own_stacks():
    log = (
        worker(1, "Traceback (most recent call last):", '  File "/t/torch/optim/adamw.py", line 1, in step')
        + worker(2, "Traceback (most recent call last):", '  File "/t/verl/fsdp_utils.py", line 1, in load_model')
        + worker(1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB")
        + worker(
            2, "RuntimeError: NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error"
        )
        + DEAD_ACTOR
    )
    found = diagnosed(log)
    assert found is not None
    assert (found.cause, found.evidence.line) == ("gpu-oom-optimizer", 5)
    assert "a Ray worker died" in [title for title, _ in found.others]


def test_a_collective_that_timed_out_comes_before_the_dead_actor():
    log = (
        worker(
            7,
            "[rank3]:[E1201 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation "
            "timeout: "
            "WorkNCCL(SeqNum=8513, OpType=_ALLGATHER_BASE, NumelIn=1, Timeout(ms)=600000) ran for 600011 milliseconds "
            "before timing out.",
        )
        + DEAD_ACTOR
    )
    found = diagnosed(log)
    assert found is not None
    assert found.cause == "hang"
    assert "_ALLGATHER_BASE" in found.what


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", "rollout-wake-up-oom"),
        ("ValueError: Free memory on device (30.2/79.1 GiB) on startup is less than desired GPU memory utilization "
         "(0.9, 71.2 GiB).", "rollout-free-memory"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "ray-host-oom"),
        ("ValueError: Total available GPUs 8.0 is less than total desired GPUs 16", "ray-gpus"),
        ("(autoscaler +1m5s) Error: No available node types can fulfill resource request {'CPU': 3.0, 'GPU': 1.0}.",
         "ray-waiting"),
        ("ImportError: /opt/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda",
         "flash-attn-build"),
        ("AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'", "vllm-mismatch"),
        ("ValueError: invalid literal for int() with base 10: 'MIG-7d0f'", "visible-devices"),
        ("Bus error (core dumped)", "shared-memory"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login", "wandb-login"),
        ("AssertionError: only support equal chunk. Got size of DataProto 2 and chunk 4.", "batch-not-divisible"),
        ("AssertionError: ppo_mini_batch_size 0 should be larger than 0 after normalization", "mini-not-divisible"),
        ("hydra.errors.ConfigCompositionException: Could not override 'actor.grad_offload'.", "hydra-unknown-key"),
        ("ModuleNotFoundError: No module named 'transfer_queue'", "transfer-queue"),
        ("ModuleNotFoundError: No module named 'liger_kernel'", "package-missing"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/gsm8k/train.parquet'", "data-missing"),
        ("step:12 - actor/pg_loss:nan - actor/grad_norm:1.2", "non-finite-loss"),
    ],
)  # fmt: skip
def test_lines_of_public_reports(line: str, cause: str):
    found = diagnosed(worker(1, "INFO all is well") + line + "\n" + DEAD_ACTOR)
    assert found is not None
    assert found.cause == cause, found


def test_only_the_dead_actor_is_known():
    found = diagnosed(DEAD_ACTOR)
    assert found is not None
    assert found.cause == "worker-died"
    assert "does not know why" in found.what


def test_an_unknown_error_wins_over_its_consequence_and_says_where_it_stands():
    log = worker(1, "Traceback (most recent call last):", '  File "/x/reward.py", line 3, in score',
                 "ZeroDivisionError: float division by zero") + DEAD_ACTOR  # fmt: skip
    found = diagnosed(log)
    assert found is not None
    assert (found.cause, found.evidence.line) == ("unknown", 3)
    assert "float division by zero" in found.what
    assert "reward.py:score" in found.remedy


@pytest.mark.parametrize("text", ["", "step:1 - actor/loss:0.3\n" * 50, "\x00\xff\x1b[", "no error here\n"])
def test_a_log_without_failure_has_no_diagnosis(text: str):
    assert diagnosed(text) is None


def test_memory_stays_flat_and_speed_is_enough_for_large_logs():
    line = b"(WorkerDict pid=1, ip=10.0.0.7) step:12 - actor/pg_loss:0.03 - perf/throughput:812.4 - step:31.2\n"
    data = io.BytesIO(line * 100_000 + b"AssertionError: only support equal chunk.\n")
    tracemalloc.start()
    started = time.perf_counter()
    found = diagnose_log(read_lines(data), Plan())
    seconds = time.perf_counter() - started
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is not None
    assert found.evidence.line == 100_001
    assert peak_bytes < 20e6
    assert seconds < 60
