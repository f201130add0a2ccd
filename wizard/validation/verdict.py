"""Judges a run from its events: pure bookkeeping, no process and no clock of its own."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from wizard.nodes.requirements import NODES_STEP
from wizard.validation.agent import killed_by
from wizard.validation.events import Event
from wizard.validation.stacks import RankStack

Outcome = Literal["passed", "failed", "timed out", "cancelled", "lost"]
FAILURE_GRACE_SECONDS = 2.0
"""How long after a first failure other ranks may tell theirs: the cause may be on another one."""
ECHO_SECONDS = 10.0
"""How long to wait for the end of a run in which ranks only say that a peer is gone: torchrun then tells which."""
SILENT_SECONDS = 20.0
"""A rank whose interpreter gives no sign for so long is lost: a live one does every second."""

SILENT = "no sign of life"
_EXIT = re.compile(r"exitcode\s*:\s*(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_SYMPTOMS = ("DistBackendError", "DistNetworkError", "DistStoreError", "RuntimeError")
_PEER = re.compile(r"Connection closed by peer|Connection reset|remote process exited|Broken pipe")


@dataclass(frozen=True)
class Verdict:
    """How a run ended."""

    outcome: Outcome
    step: str = ""
    rank: int | None = None
    cause: str = ""
    failure: dict[str, Any] = field(default_factory=dict)
    """The failure event's data: exception, message, frames, memory; `stacks` of every rank where a run hung."""
    behind: tuple[int, ...] = ()
    """Ranks that had not reached the step's end when time was up."""
    node: str = ""
    """The machine of `rank`, where the run has several."""

    @property
    def hung(self) -> bool:
        """Whether ranks were still there when the run was given up, so that they can be asked what they do."""
        return self.outcome == "timed out" or SILENT in self.cause

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        where = f" in step {self.step}" if self.step else ""
        who = f" on rank {self.rank}" if self.rank is not None else ""
        who += f" (node {self.node})" if self.node else ""
        if self.outcome == "passed":
            return "Passed: every step ran on every rank."
        if self.outcome == "timed out":
            ranks = ", ".join(map(str, self.behind))
            return f"Timed out{where}: rank {ranks} did not get through. {self.cause}".rstrip()
        if self.outcome == "cancelled":
            return f"Cancelled{where}."
        return f"{self.outcome.capitalize()}{where}{who}: {self.cause}"


@dataclass
class RankState:
    """What is known of one rank."""

    pid: int = 0
    node: str = ""
    step: str = ""
    done: dict[str, float] = field(default_factory=dict)
    """Seconds of each finished step."""
    step_since: float = 0.0
    finished: bool = False
    failure: Event | None = None
    lost: Event | None = None


class RunState:
    """The run so far; `now` is any clock that only goes forward, in seconds."""

    def __init__(self, ranks: Iterable[int], step_limit_seconds: float, now: float) -> None:
        self.ranks = {rank: RankState(step_since=now) for rank in ranks}
        self.step_limit_seconds = step_limit_seconds
        self._first_failure_at: float | None = None
        self._first_lost_at: float | None = None

    @property
    def step(self) -> str:
        """The step that the slowest rank is in."""
        waiting = [state.step for state in self.ranks.values() if not state.finished]
        return waiting[0] if waiting else ""

    def feed(self, event: Event, now: float) -> None:
        """Take one event into account."""
        state = self.ranks.get(event.rank)
        if state is None:
            return
        state.node = event.node or state.node
        if event.kind == "step_started":
            state.step, state.step_since = event.step, now
        elif event.kind == "step_finished":
            state.done[event.step] = float(event.data.get("seconds", 0.0))
            state.step_since = now
        elif event.kind == "metric" and "pid" in event.data:
            state.pid = int(event.data["pid"])
        elif event.kind == "failure" and state.failure is None:
            state.failure = event
            self._first_failure_at = self._first_failure_at or now
        elif event.kind == "lost" and state.lost is None:
            state.lost = event
            self._first_lost_at = self._first_lost_at or now
        elif event.kind == "finished":
            state.finished = True

    def verdict(self, now: float, silent_seconds: dict[int, float] | None = None) -> Verdict | None:
        """Return how the run ended, None while it goes on. `silent_seconds`: since each rank's last sign of life."""
        if self._first_lost_at is not None and not self._reasons:
            # Ranks that only say that a peer is gone mean this one.
            return self._gone() if now - self._first_lost_at >= FAILURE_GRACE_SECONDS else None
        if self._first_failure_at is not None:
            told = sum(state.failure is not None for state in self.ranks.values())
            waited = now - self._first_failure_at
            if told == len(self.ranks) or waited >= (FAILURE_GRACE_SECONDS if self._reasons else ECHO_SECONDS):
                return self._failed()
            return None
        if all(state.finished for state in self.ranks.values()):
            return Verdict("passed")
        for rank, seconds in (silent_seconds or {}).items():
            if seconds > SILENT_SECONDS and not self.ranks[rank].finished:
                step = self.ranks[rank].step
                cause = f"its process gave {SILENT} for {seconds:.0f} s"
                return Verdict("lost", step, rank, cause, node=self._node(rank))
        return self._timed_out(now)

    def ended(self, code: int, log_tail: str, *, cancelled: bool) -> Verdict:
        """Return the verdict of a run whose processes are gone."""
        if self._reasons:
            return self._failed()
        if all(state.finished for state in self.ranks.values()):
            return Verdict("passed")
        if cancelled:
            return Verdict("cancelled", self.step)
        killed = self._gone() or self._killed(log_tail)
        if killed is None and self._first_failure_at is not None:
            return self._failed()
        return killed or self._lost(code, log_tail)

    @property
    def _failures(self) -> list[Event]:
        return [state.failure for state in self.ranks.values() if state.failure is not None]

    @property
    def _reasons(self) -> list[Event]:
        """Failures but for those of ranks that only lost their peer."""
        return [event for event in self._failures if not _is_echo(event)]

    def _failed(self) -> Verdict:
        first = min(self._reasons or self._failures, key=lambda event: event.time)
        cause = f"{first.data.get('exception', 'Error')}: {first.data.get('message', '')}"
        rank = None if first.step == NODES_STEP else first.rank
        return Verdict("failed", first.step, rank, cause, dict(first.data), node=self._node(first.rank))

    def _gone(self) -> Verdict | None:
        """Return the first rank that its driver says is lost."""
        events = [state.lost for state in self.ranks.values() if state.lost is not None]
        if not events:
            return None
        first = min(events, key=lambda event: event.time)
        return Verdict("lost", first.step, first.rank, str(first.data.get("cause")), node=self._node(first.rank))

    def _node(self, rank: int | None) -> str:
        """Return a rank's node where there are several to choose from."""
        nodes = {state.node for state in self.ranks.values()}
        return self.ranks[rank].node if rank is not None and len(nodes) > 1 else ""

    def _timed_out(self, now: float) -> Verdict | None:
        slow = [rank for rank, state in self.ranks.items() if not state.finished]
        if not slow or now - max(self.ranks[rank].step_since for rank in slow) <= self.step_limit_seconds:
            return None
        least = min(len(self.ranks[rank].done) for rank in slow)
        behind = tuple(rank for rank in slow if len(self.ranks[rank].done) == least)
        step = self.ranks[behind[0]].step
        return Verdict("timed out", step, cause=f"No progress for {self.step_limit_seconds:.0f} s.", behind=behind)

    def _killed(self, log_tail: str) -> Verdict | None:
        """Return the rank that torchrun reports as killed by a signal; SIGTERM is torchrun's own, for the others."""
        by_pid = {state.pid: rank for rank, state in self.ranks.items() if state.pid}
        for found in _EXIT.finditer(log_tail):
            exit_code, rank = int(found["code"]), by_pid.get(int(found["pid"]))
            if exit_code < 0 and exit_code != -signal.SIGTERM:
                step = self.ranks[rank].step if rank is not None else self.step
                return Verdict("lost", step, rank, killed_by(exit_code), node=self._node(rank))
        return None

    def _lost(self, code: int, log_tail: str) -> Verdict:
        last = next((line for line in reversed(log_tail.splitlines()) if line.strip()), "no output")
        return Verdict("lost", self.step, cause=f"its processes ended with code {code}: {last.strip()[:300]}")


def with_stacks(verdict: Verdict, stacks: tuple[RankStack, ...]) -> Verdict:
    """Return a hung run's verdict with where its ranks are.

    Ranks that wait in a collective wait for those that are not in one: these are behind, where there are both.
    """
    elsewhere = tuple(stack for stack in stacks if not stack.collective)
    late = elsewhere if len(elsewhere) < len(stacks) else ()
    told = [stack.sentence for stack in sorted(stacks, key=lambda stack: stack not in late)]
    frames = [f"{frame.file}:{frame.function}" for frame in reversed((late or stacks)[0].frames)] if stacks else []
    return replace(
        verdict,
        behind=tuple(stack.rank for stack in late) or verdict.behind,
        cause=" ".join((verdict.cause, "; ".join(told))),
        failure={"frames": frames, "stacks": [asdict(stack) for stack in stacks]},
    )


def _is_echo(event: Event) -> bool:
    message = str(event.data.get("message", ""))
    return event.data.get("exception") in _SYMPTOMS and _PEER.search(message) is not None
