"""Runs a cluster check through a launcher and judges what comes back. Runs in the wizard's process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from wizard.cluster.checks import found
from wizard.cluster.judge_network import judge_network
from wizard.cluster.judge_nodes import judge_nodes
from wizard.cluster.judge_pace import judge_pace
from wizard.cluster.judge_ray import judge_ray
from wizard.cluster.report import Measurements, NodeFacts
from wizard.cluster.spec import CheckSpec
from wizard.findings import Finding, Severity
from wizard.model.tiny import TINY_ID
from wizard.nodes.requirements import RayNode
from wizard.plan import Plan
from wizard.validation.events import Event
from wizard.validation.launch import RENDEZVOUS_SECONDS, Launch, Torchrun
from wizard.validation.launcher import Run
from wizard.validation.plan_spec import cpu_ranks
from wizard.validation.verdict import Verdict
from wizard.verl.ray_demand import Demand

_ORDER = list(Severity)


@dataclass(frozen=True)
class ClusterReport:
    """What a check found."""

    verdict: Verdict
    nodes: tuple[NodeFacts, ...] = ()
    """One entry a node: its first rank's."""
    measured: Measurements | None = None
    ray_nodes: tuple[RayNode, ...] = ()
    demand: Demand | None = None
    """What verl will ask of Ray, where the Plan is known."""
    findings: tuple[Finding, ...] = ()
    """Errors first."""

    @property
    def failed(self) -> bool:
        """Whether there is an error among the findings."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def check_spec(plan: Plan, launch: Launch, gpus: int, world_size: int | None = None, model: str = "") -> CheckSpec:
    """Return the check of the nodes that a Plan will run on.

    Args:
        gpus: of all nodes together; 0 checks with gloo on the CPU.
        world_size: ranks; None takes one a GPU, else `cpu_ranks`.
        model: folder that all nodes must see; empty takes the Plan's.
    """
    ranks = world_size or gpus or cpu_ranks(launch.nodes)
    return CheckSpec(ranks, "cuda" if gpus else "cpu", model or _folder(plan.model.id))


def _folder(model: str) -> str:
    """Return the folder that the nodes must share; a name on the hub is none, and a path is this machine's."""
    if model.startswith("~"):
        return model
    return os.path.abspath(model) if os.path.isabs(model) or (model != TINY_ID and os.path.isdir(model)) else ""


@dataclass
class ClusterCheck:
    """One check that is going on; ask for `report` when its events have ended."""

    run: Run
    launch: Launch
    demand: Demand | None = None
    _facts: dict[int, NodeFacts] = field(default_factory=dict)
    _measured: Measurements | None = None
    _ray_nodes: tuple[RayNode, ...] = ()

    @classmethod
    async def start(cls, spec: CheckSpec, python: str, launch: Launch, demand: Demand | None = None) -> ClusterCheck:
        """Start the ranks; `demand` is what verl will ask of Ray, where a Plan says so.

        Raises:
            NodeError: the ranks cannot be spread over the nodes.
            OSError: the run's folder cannot be made, or the interpreter cannot be started.
        """
        return cls(await Run.start(spec, python, launch=launch), launch, demand)

    async def events(self) -> AsyncIterator[Event]:
        """Yield the run's events as they come, until it has a verdict."""
        async for event in self.run.events():
            self._take(event.data)
            yield event

    def _take(self, data: dict[str, Any]) -> None:
        if "facts" in data:
            for facts in msgspec.convert(data["facts"], list[NodeFacts]):
                self._facts.setdefault(facts.rank, facts)
        if "measured" in data and self._measured is None:
            parts = msgspec.convert(data["measured"], list[Measurements])
            self._measured = Measurements(
                parts[0].backend,
                tuple(one for part in parts for one in part.bandwidths),
                tuple(step for part in parts for step in part.steps),
                tuple(clock for part in parts for clock in part.clocks),
                tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
            )
        if "ray_nodes" in data:
            self._ray_nodes = tuple(msgspec.convert(data["ray_nodes"], list[RayNode]))

    @property
    def report(self) -> ClusterReport:
        """What has been found."""
        assert self.run.verdict is not None
        by_node: dict[str, NodeFacts] = {}
        for rank in sorted(self._facts):
            by_node.setdefault(self._facts[rank].node, self._facts[rank])
        nodes = tuple(by_node.values())
        findings = [*judge_nodes(nodes), *judge_network(nodes)]
        if self._measured is not None:
            findings += judge_pace(self._measured, by_node)
        if self.demand is not None and self._ray_nodes:
            findings += judge_ray(self.demand, self._ray_nodes)
        findings += self._run_findings(self.run.verdict)
        findings.sort(key=lambda finding: _ORDER.index(finding.severity))
        return ClusterReport(self.run.verdict, nodes, self._measured, self._ray_nodes, self.demand, tuple(findings))

    def _run_findings(self, verdict: Verdict) -> list[Finding]:
        if verdict.outcome in ("passed", "cancelled"):
            return []
        where = f"node {verdict.node}" if verdict.node else "the nodes"
        text = verdict.sentence
        if not self._facts and isinstance(self.launch, Torchrun) and self.launch.nodes > 1:
            text = (
                f"Not all {self.launch.nodes} nodes came to {self.launch.rdzv_endpoint} within "
                f"{RENDEZVOUS_SECONDS:.0f} s. Start the same command on each of them with its --node-rank. {text}"
            )
        return [found("cluster-run", where, verdict.outcome, text)]
