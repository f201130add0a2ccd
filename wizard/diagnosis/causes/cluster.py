"""Processes and the network between them: collectives, Ray's resources, and ranks that died."""

from __future__ import annotations

import re

from wizard.diagnosis.evidence import Cause, Level

CAUSES = (
    Cause(
        "ray-gpus",
        "Ray has fewer GPUs than the run wants",
        re.compile(r"Total available GPUs (?P<there>[\d.]+) is less than total desired GPUs (?P<wanted>[\d.]+)"),
        "The Ray cluster offers {there} GPUs and the configuration asks for {wanted}.",
        "Join the missing nodes (ray start --address=HEAD:6379), or lower trainer.nnodes × n_gpus_per_node; set "
        "CUDA_VISIBLE_DEVICES before ray start.",
        rule="ray-gpus",
        source="verl 0.9.1 `single_controller/ray/base.py`",
    ),
    Cause(
        "ray-waiting",
        "Ray waits for resources that never come",
        re.compile(
            r"The following resource request cannot be scheduled right now: (?P<what>.*)"
            r"|No available node types can fulfill resource request (?P<request>.*)"
            r"|Placement group .* cannot be created|Insufficient cluster resources"
        ),
        "No node can hold a bundle of the placement group ({what}{request}); verl waits without an error.",
        "verl 0.7 to 0.9 ask for 3 CPUs a GPU on one node, 0.9 for nine more (TransferQueue): give Ray more CPUs "
        "(ray start --num-cpus), or fewer GPUs a node.",
        level=Level.SYMPTOM,
        rule="ray-cpus",
        source="ray autoscaler; verl 0.9.1 `single_controller/ray/base.py` (`max_colocate_count` = 3)",
    ),
    Cause(
        "duplicate-gpu",
        "two ranks use the same GPU",
        re.compile(r"Duplicate GPU detected"),
        "NCCL found two ranks of one group on the same GPU.",
        "Start as many ranks as there are visible GPUs; look at CUDA_VISIBLE_DEVICES in every process.",
        rule="visible-devices",
        source="NCCL `src/init.cc`",
    ),
    Cause(
        "network-interface",
        "no usable network interface",
        re.compile(
            r"no socket interface found|Unable to find address for: (?P<name>\S+)|makeDeviceForHostname"
            r"|NCCL_SOCKET_IFNAME"
        ),
        "The collective backend found no interface {name} that it may use.",
        "Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the interface that connects the nodes (ip -br addr).",
        source="NCCL `src/misc/socket.cc`; gloo `transport/tcp/device.cc`",
    ),
    Cause(
        "port-in-use",
        "the rendezvous port is taken",
        re.compile(r"EADDRINUSE|[Aa]ddress already in use|errno: 98"),
        "Another process, often an earlier run, holds the port.",
        "End the other run, or choose another MASTER_PORT / --rdzv-endpoint.",
        source="torch `csrc/distributed/c10d/TCPStore.cpp`",
    ),
    Cause(
        "rendezvous",
        "ranks did not find each other",
        re.compile(
            r"The client socket has (?:timed out|failed to connect)|connectFullMesh failed|RendezvousTimeoutError"
            r"|RendezvousConnectionError"
            r"|DistStoreError|No route to host|Connection refused.*(?:TCPStore|rendezvous|MASTER)"
        ),
        "At least one rank could not reach the rendezvous address.",
        "Check that every node reaches MASTER_ADDR:MASTER_PORT (firewall, several interfaces) and that all ranks "
        "were started.",
        level=Level.SYMPTOM,
        source="torch `csrc/distributed/c10d/socket.cpp`; gloo `rendezvous/context.cc`",
    ),
    Cause(
        "illegal-access",
        "a GPU kernel read or wrote where it must not",
        re.compile(r"illegal memory access was encountered|device-side assert triggered|unspecified launch failure"),
        "A CUDA kernel failed; the stack shows where the error surfaced, not where it arose.",
        "Run again with CUDA_LAUNCH_BLOCKING=1; an index beyond the vocabulary (tokenizer and model differ) is the "
        "usual reason.",
        source="CUDA errors 700, 710, 719",
    ),
    Cause(
        "gpu-fault",
        "a GPU failed",
        re.compile(
            r"NVRM: Xid|uncorrectable ECC error|GPU has fallen off the bus"
            r"|CUDA error: an? (?:uncorrectable|hardware)"
        ),
        "The driver reports a hardware fault.",
        "Look at dmesg for the Xid number and take the GPU out of the job.",
        source="NVIDIA driver",
    ),
    Cause(
        "hang",
        "a collective never finished",
        re.compile(
            r"Watchdog caught collective operation timeout: (?P<what>.*?ran for \d+ milliseconds)"
            r"|Timed out in step (?P<step>\w+): (?P<behind>.*)|gave no sign of life for \d+ s ?(?P<silent>.*)"
            r"|Timed out waiting \d+ms for (?:recv|send) operation|Collective operation timed out"
        ),
        "Ranks waited for each other until the time limit: {what}{behind}{silent}",
        "Find the rank that is behind: it failed earlier, took another branch (an expert or a batch that only some "
        "ranks have), or is slower than actor_rollout_ref.nccl_timeout.",
        level=Level.SYMPTOM,
        source="torch `csrc/distributed/c10d/ProcessGroupNCCL.cpp`; gloo",
    ),
    Cause(
        "nccl",
        "NCCL failed",
        re.compile(
            r"NCCL error in: .*|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|NCCL WARN (?P<what>.*)"
        ),
        "A collective failed inside NCCL: {what}.",
        "Run again with NCCL_DEBUG=INFO and look at the first WARN of every rank.",
        level=Level.SYMPTOM,
        source="NCCL; torch `csrc/distributed/c10d/NCCLUtils.hpp`",
    ),
    Cause(
        "killed-by-signal",
        "a process was killed",
        re.compile(
            r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\)"
            r"|process was killed by SIGKILL|^Killed\b"
        ),
        "A process was killed with SIGKILL, which nothing but the kernel (memory), Slurm, or a person sends.",
        "Look at dmesg and the cgroup's memory.events for an out-of-memory kill; else at the job's time and memory "
        "limits.",
        level=Level.SYMPTOM,
        rule="host-memory",
        source="torch `distributed/elastic/multiprocessing/errors`; the kernel",
    ),
    Cause(
        "crashed",
        "a process crashed in native code",
        re.compile(
            r"(?:Signal (?:11|6|7|4) \(|killed by )(?P<name>SIG(?:SEGV|ABRT|BUS|ILL|FPE))"
            r"|Fatal Python error: (?P<what>.*)|Segmentation fault"
            r"|exitcode\s*:\s*-(?:11|6|7|4)\b"
        ),
        "A process ended in native code ({name}{what}): a compiled extension or a driver, not Python.",
        "Check the versions of torch, flash-attn and vLLM against each other; run with faulthandler for the stack.",
        level=Level.SYMPTOM,
        source="the kernel; CPython `faulthandler`",
    ),
    Cause(
        "worker-died",
        "a Ray worker died",
        re.compile(
            r"A worker died or was killed while executing a task|ActorDiedError|ActorUnavailableError"
            r"|WorkerCrashedError|NodeDiedError|The actor is dead because"
        ),
        "Ray only saw that a worker process was gone; it does not know why.",
        "Look for the first error in that worker's own log (/tmp/ray/session_latest/logs), and in dmesg for an "
        "out-of-memory kill.",
        level=Level.CONSEQUENCE,
        source="ray `exceptions.py`",
    ),
    Cause(
        "peer-gone",
        "a peer closed its connection",
        re.compile(
            r"Connection closed by peer|Connection reset by peer|Broken pipe"
            r"|remote process exited or there was a network error|ChildFailedError"
        ),
        "This process noticed that another one was gone.",
        "Look for the first error of the other ranks.",
        level=Level.CONSEQUENCE,
        source="gloo, NCCL, torch `distributed/elastic`",
    ),
)
