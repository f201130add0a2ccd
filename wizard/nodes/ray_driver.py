"""Runs the ranks of a run as Ray actors.

`python _target_entry.py wizard.nodes.ray_driver WORKER SPEC FOLDER ADDRESS NODES` takes torchrun's place under the
agent, in the target interpreter (standard library and Ray only). It writes what every rank tells into the run folder of
this machine, in the same files as local ranks do. The actors and the placement groups belong to this process:
it removes them when it is told to end, and Ray does when it dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from wizard.nodes.job import Job, read_job
from wizard.nodes.ray_rank import News, RayRank
from wizard.nodes.reach import cannot_connect
from wizard.nodes.requirements import (
    NODES_STEP,
    NodeError,
    RayNode,
    Wanted,
    check_facts,
    choose_nodes,
    distinct_names,
    split_ranks,
)
from wizard.validation.agent import CANCELLED_CODE, killed_by
from wizard.validation.events import Event, Kind, to_line
from wizard.validation.reporter import event_file, heartbeat_file
from wizard.validation.stacks import STACKS_ANSWER, STACKS_REQUEST

RAY_TOKEN = Path.home() / ".ray" / "auth_token"
"""Where Ray keeps the token of this person's clusters; any local `ray.init()` leaves one behind."""
PLACE_SECONDS = 30.0
"""How long Ray may take for placement groups on nodes that have what they need."""
ACTOR_SECONDS = 60.0
"""How long the actors may take to start; Ray starts an interpreter for each and copies our package there once."""
POLL_SECONDS = 0.3
LOST_SECONDS = 8.0
"""A node that does not answer for so long is lost; the calls take milliseconds."""
CLOSE_SECONDS = 1.0
"""Less than the agent's grace: what has not ended by itself is killed."""
FORWARDED = ("VERL_WIZARD_", "NCCL_", "GLOO_", "TORCH_", "HF_", "OMP_", "CUDA_DEVICE_MAX_CONNECTIONS")
"""Beginnings of the variables that ranks get from this machine; a path in one must be right on all nodes."""


def _token_hint() -> str:
    """Return what to do where the head may ask for a token, as ray 2.60's `scripts/scripts.py` starts it where there is
    one: whoever joins by address sends none by itself (`_private/worker.py`)."""
    if not RAY_TOKEN.is_file() or "RAY_AUTH_MODE" in os.environ:
        return ""
    return f". If the head asks for a token, RAY_AUTH_MODE=token sends the one in {RAY_TOKEN}"


class Driver:
    """The ranks of one run on a Ray cluster."""

    def __init__(self, job: Job, folder: Path, address: str, nodes: int) -> None:
        self._job, self._folder, self._address = job, folder, address
        self._wanted = Wanted(nodes, split_ranks(job.world_size, nodes), job.device == "cuda", job.cpus_per_gpu)
        self._groups: list[Any] = []
        self._actors: list[Any] = []
        self._nodes: list[str] = []
        """The node of each rank."""
        self._steps = [""] * job.world_size
        self._read = [(0, 0)] * job.world_size
        """Bytes of events and log that each rank's node has sent."""

    def run(self) -> int:
        """Start the ranks and follow them to their end; 0 when all passed.

        Raises:
            NodeError: the cluster cannot run this.
        """
        self._connect()
        try:
            alive = self._alive()
            if self._job.tolerant:
                self._tell("metric", 0, NODES_STEP, ray_nodes=[dataclasses.asdict(node) for node in alive])
            self._place(choose_nodes(alive, self._wanted, self._address))
            self._start()
            return self._follow()
        finally:
            self._close()

    def _connect(self) -> None:
        try:
            import ray
        except ImportError:
            raise NodeError(
                f"{sys.executable} has no Ray, which the nodes are reached with: pip install 'ray[default]' there."
            ) from None
        host, _, port = self._address.removeprefix("ray://").rpartition(":")
        # Ray itself tries for more than a minute.
        problem = cannot_connect(host.strip("[]"), int(port)) if port.isdigit() else ""
        if problem:
            raise NodeError(f"no Ray cluster at {self._address}: {problem}. Start one: ray start --head")
        package = str(Path(__file__).parents[1])
        try:
            ray.init(
                address=self._address,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"py_modules": [package], "excludes": ["__pycache__"]},
            )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            raise NodeError(f"no Ray cluster at {self._address}: {error}{_token_hint()}") from error

    def _alive(self) -> list[RayNode]:
        import ray
        from ray._private.state import available_resources_per_node

        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        names = distinct_names({key: str(node["NodeManagerHostname"]) for key, node in alive.items()})
        free = available_resources_per_node()
        return [
            RayNode(key, names[key], str(node["NodeManagerAddress"]), node["Resources"], free.get(key, {}))
            for key, node in alive.items()
        ]

    def _place(self, nodes: list[RayNode]) -> None:
        """Make one strictly packed placement group a node, as verl 0.9.1 does (`RayResourcePool`), and its actors."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundles = [self._wanted.bundle] * self._wanted.ranks_per_node
        for node in nodes:
            self._groups.append(placement_group(bundles, strategy="STRICT_PACK", _soft_target_node_id=node.id))
        for node, group in zip(nodes, self._groups, strict=True):
            if not group.wait(PLACE_SECONDS):
                raise NodeError(f"Ray did not give {bundles} on node {node.name} within {PLACE_SECONDS:.0f} s.")
        actor = ray.remote(RayRank)
        for rank in range(self._job.world_size):
            at, index = divmod(rank, self._wanted.ranks_per_node)
            self._nodes.append(nodes[at].name)
            strategy = PlacementGroupSchedulingStrategy(self._groups[at], placement_group_bundle_index=index)
            options = {"num_cpus": 1, "num_gpus": int(self._wanted.gpu), "scheduling_strategy": strategy}
            self._actors.append(actor.options(**options).remote(self._job, rank, nodes[at].name))

    def _start(self) -> None:
        """Start the workers once every rank is known to be able to meet the others."""
        if not self._job.tolerant:
            check_facts(self._ask("facts"), self._job.model)
        address, port = self._get([self._actors[0].listen.remote()])[0]
        for rank, problem in enumerate(self._ask("reach", address, port)):
            if problem:
                raise NodeError(
                    f"node {self._nodes[rank]} cannot reach the rendezvous of rank 0 at {address}:{port} on node "
                    f"{self._nodes[0]}: {problem}. Open the nodes to each other."
                )
        variables = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
        self._ask("start", address, port, variables)

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        return self._get([getattr(actor, method).remote(*arguments) for actor in self._actors])

    def _get(self, calls: list[Any]) -> list[Any]:
        import ray

        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=ACTOR_SECONDS)
        for rank, call in enumerate(calls):
            if call not in ready:
                raise NodeError(
                    f"node {self._nodes[rank]} started no process for rank {rank} in {ACTOR_SECONDS:.0f} s."
                )
            try:
                ray.get(call)
            except ray.exceptions.RayError as error:
                raise NodeError(f"node {self._nodes[rank]} could not start rank {rank}: {error}") from error
        return list(ray.get(calls))

    def _follow(self) -> int:
        import ray

        codes: dict[int, int] = {}
        asked: dict[Any, int] = {}
        answered = [time.monotonic()] * self._job.world_size
        while len(codes) < self._job.world_size:
            for rank in set(range(self._job.world_size)) - set(codes) - set(asked.values()):
                asked[self._actors[rank].news.remote(*self._read[rank])] = rank
            ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=POLL_SECONDS)
            for call in ready:
                rank = asked.pop(call)
                try:
                    news = ray.get(call)
                except ray.exceptions.ActorUnavailableError:
                    continue
                except ray.exceptions.RayError as error:
                    codes[rank] = self._lose(rank, f"its node or process is gone: {_first_line(error)}")
                    continue
                answered[rank] = time.monotonic()
                self._write(rank, news)
                if news.exit_code is not None:
                    codes[rank] = news.exit_code
                if (news.exit_code or 0) < 0:
                    self._lose(rank, killed_by(news.exit_code))
            for rank in set(asked.values()) - set(codes):
                if time.monotonic() - answered[rank] > LOST_SECONDS:
                    codes[rank] = self._lose(rank, f"its node gave no answer for {LOST_SECONDS:.0f} s")
            self._answer_stacks(set(codes))
            time.sleep(POLL_SECONDS)
        return int(any(codes.values()))

    def _lose(self, rank: int, cause: str) -> int:
        self._tell("lost", rank, self._steps[rank], cause=cause)
        return 1

    def _tell(self, kind: Kind, rank: int, step: str, **data: Any) -> None:
        event = Event(kind, rank, time.time(), step, data, self._nodes[rank] if self._nodes else "")
        with event_file(self._folder, rank).open("ab") as stream:
            stream.write(to_line(event).encode())

    def _write(self, rank: int, news: News) -> None:
        events_bytes, log_bytes = self._read[rank]
        self._read[rank] = (events_bytes + len(news.events), log_bytes + len(news.log))
        if news.events:
            with event_file(self._folder, rank).open("ab") as stream:
                stream.write(news.events)
            for line in news.events.splitlines():
                with contextlib.suppress(ValueError):
                    self._steps[rank] = str(json.loads(line).get("step", ""))
        if news.log:
            sys.stdout.buffer.write(news.log)
            sys.stdout.buffer.flush()
        if news.silent_seconds is not None:
            beat = heartbeat_file(self._folder, rank)
            beat.touch()
            # By this machine's clock: those of the nodes may differ.
            os.utime(beat, (time.time() - news.silent_seconds,) * 2)

    def _answer_stacks(self, gone: set[int]) -> None:
        import ray

        request = self._folder / STACKS_REQUEST
        if not request.exists():
            return
        request.unlink()
        calls = [
            actor.stacks.remote(step)
            for rank, (actor, step) in enumerate(zip(self._actors, self._steps, strict=True))
            if rank not in gone
        ]
        found = []
        for call in calls:
            with contextlib.suppress(ray.exceptions.RayError):
                found.append(dataclasses.asdict(ray.get(call, timeout=LOST_SECONDS)))
        answer = self._folder / STACKS_ANSWER
        answer.with_suffix(".part").write_text(json.dumps(found), encoding="utf-8")
        answer.with_suffix(".part").rename(answer)

    def _close(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        with contextlib.suppress(Exception):
            ray.wait(
                [actor.close.remote() for actor in self._actors],
                num_returns=len(self._actors),
                timeout=CLOSE_SECONDS,
            )
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        for group in self._groups:
            with contextlib.suppress(Exception):
                remove_placement_group(group)
        ray.shutdown()


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def main(argv: list[str]) -> int:
    """Run the ranks; a cluster that cannot run it is told as a failure before the first step."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(CANCELLED_CODE))
    job, folder = read_job(argv[0], Path(argv[1])), Path(argv[2])
    try:
        return Driver(job, folder, argv[3], int(argv[4])).run()
    except NodeError as error:
        tell_refusal(folder, str(error))
        return 1


def tell_refusal(folder: Path, message: str, rank: int = 0) -> None:
    """Write the failure of a run whose nodes cannot do it."""
    event = Event("failure", rank, time.time(), NODES_STEP, {"exception": "NodeError", "message": message})
    with event_file(folder, rank).open("a", encoding="utf-8") as stream:
        stream.write(to_line(event))
