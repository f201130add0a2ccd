"""GPUs and CPUs of the nodes against what verl asks of Ray."""

from __future__ import annotations

from collections.abc import Iterator

from wizard.facts import Machine
from wizard.findings import Fix, Severity, Stage
from wizard.rules.case import Case
from wizard.rules.registry import Found, rule, set_key
from wizard.verl.ray_demand import UNITS, Demand, Room, demand_of, place

GPUS = "trainer.n_gpus_per_node"


@rule(
    "ray-gpus", "the run asks for no more GPUs than there are", Severity.ERROR, Stage.TRAINER,
    (GPUS, "trainer.nnodes"), "verl 0.9.1 single_controller/ray/base.py:226-242",
)  # fmt: skip
def ray_gpus(case: Case) -> Iterator[Found]:
    """verl's default is 8 a node. It compares only sums; a node with too few makes Ray wait for ever."""
    machine = case.facts.machine
    if machine is None or not machine.gpus_per_node:
        return
    asked = demand_of(case.config).gpus
    if case.number(GPUS, 1) > machine.gpus_per_node:
        text = f"a node has {machine.gpus_per_node} GPUs: Ray waits for ever, or verl stops."
        yield Found(GPUS, text, (set_key(GPUS, machine.gpus_per_node),))
    elif asked > machine.world_size:
        text = f"{asked} GPUs are asked for in all, and there are {machine.world_size}."
        alone = asked == case.world_size
        yield Found("trainer.nnodes", text, (set_key("trainer.nnodes", machine.nodes),)) if alone else Found(GPUS, text)


@rule(
    "ray-cpus", "the nodes have the CPUs that verl asks for", Severity.ERROR, Stage.TRAINER,
    (GPUS, UNITS), "verl 0.9.1 single_controller/ray/base.py:146-192; transfer_queue 0.1.11 storage/simple_storage.py",
)  # fmt: skip
def ray_cpus(case: Case) -> Iterator[Found]:
    """Each GPU comes with 3 CPUs (one in 0.6), all of a node in one placement group, and TransferQueue's controller and
    storage units took a CPU each before. With fewer, `ray.get(pg.ready())` waits for ever and says nothing."""
    machine = case.facts.machine
    if machine is None or not machine.host_cpus or not machine.gpus_per_node:
        return
    demand = demand_of(case.config)
    if all(missing.lacks_gpus for missing in place(demand, _rooms(machine))):
        return
    each = f"{demand.pools[0].cpus_per_gpu} for each GPU" + "".join(
        f", {actors.count} × {actors.name}" for actors in demand.actors
    )
    text = (
        f"verl asks for {demand.cpus} CPUs in all ({each}), and {machine.nodes} × {machine.host_cpus} do not hold "
        "them: Ray waits for ever. (ray start --num-cpus overrides the count.)"
    )
    yield Found(GPUS, text, tuple(_fixes(case, machine)))


def _rooms(machine: Machine) -> list[Room]:
    return [Room(f"node {node}", machine.host_cpus, machine.gpus_per_node) for node in range(machine.nodes)]


def _fixes(case: Case, machine: Machine) -> Iterator[Fix]:
    """Offer fewer storage units where that is enough, and the most GPUs that fit."""
    for key, most in ((UNITS, case.number(UNITS)), (GPUS, case.number(GPUS, 1))):
        for value in range(most - 1, 0, -1):
            if _fits(demand_of(case.config.set({key: value})), machine):
                yield set_key(key, value)
                break


def _fits(demand: Demand, machine: Machine) -> bool:
    return not place(demand, _rooms(machine))
