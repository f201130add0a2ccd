"""What verl asks of Ray: placement groups of GPUs with their CPUs, and actors that hold a CPU each.

Sources, all of verl 0.9.1 unless said: `single_controller/ray/base.py` (`RayResourcePool`, `ResourcePoolManager`:
each GPU's bundle is `{CPU: max_colocate_count, GPU: 1}`, a node's bundles are one STRICT_PACK group),
`trainer/ppo/v1/trainer_base.py` (`_init_resource_pool_mgr`), `workers/rollout/replica.py` (`init_standalone`),
`trainer/main_ppo.py`; 0.6.1 `trainer/ppo/ray_trainer.py:88` and `vllm_async_server.py:444`; 0.6.1 to 0.8.0
`trainer/main_ppo.py` (`num_cpus=1`); transfer_queue 0.1.11 `controller.py:943`, `storage/simple_storage.py:722`,
`utils/common.py:48`.

Agent loop workers, reward loop workers, routers and (since 0.7) HTTP servers are actors without resources: Ray starts
them on a node whose CPUs are all taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wizard.nodes.requirements import COLOCATED_CPUS
from wizard.plan import Plan
from wizard.verl.config import VerlConfig
from wizard.verl.keys import ROLLOUT
from wizard.verl.pools import launched_groups, launched_pool

UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
_STANDALONE_CPUS = 2
_REWARD = {True: "reward.reward_model", False: "reward_model"}
"""Block of the reward model, by whether the release is 0.7 or later."""


@dataclass(frozen=True)
class Pool:
    """GPUs that verl reserves together: `nodes` placement groups of `gpus_per_node` bundles."""

    name: str
    nodes: int
    gpus_per_node: int
    cpus_per_gpu: int
    strict: bool = True
    """Whether a group's bundles must lie on one node (STRICT_PACK); PACK may spread them."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole pool."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class Actors:
    """Actors of one kind that hold one CPU each for as long as the run lasts."""

    name: str
    """Of one of them."""
    count: int
    pinned: bool = False
    """Dealt out to the nodes one after the other, each bound to its node."""


@dataclass(frozen=True)
class Demand:
    """All that a run asks for. The actors come first: verl makes them before its pools."""

    pools: tuple[Pool, ...]
    actors: tuple[Actors, ...]

    @property
    def gpus(self) -> int:
        """GPUs of all pools together, the sum that verl compares with what Ray has."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def cpus(self) -> int:
        """CPUs of all pools and actors together."""
        return sum(pool.gpus * pool.cpus_per_gpu for pool in self.pools) + sum(actors.count for actors in self.actors)


@dataclass(frozen=True)
class Room:
    """What a node has to give."""

    name: str
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Unplaced:
    """One thing that no node can hold, and what the nodes had left when its turn came."""

    what: str
    """Name of its pool or of its kind of actor."""
    number: int
    """Node of the pool, or actor of that kind; from 0."""
    cpus: int
    gpus: int
    left: tuple[Room, ...]

    @property
    def lacks_gpus(self) -> bool:
        """Whether GPUs alone keep it out."""
        return all(room.gpus < self.gpus for room in self.left)


def demand_of_plan(plan: Plan, config: VerlConfig) -> Demand:
    """Return what a Plan asks for; `config` is the Plan's. Pools that a launcher makes have no key."""
    demand = demand_of(config)
    pools = (
        Pool(launched_pool(group), group.nodes, group.gpus_per_node, _bundle_cpus(config))
        for group in launched_groups(plan)
    )
    return replace(demand, pools=(*demand.pools, *pools))


def demand_of(config: VerlConfig) -> Demand:
    """Return what a configuration asks for."""
    return Demand(tuple(pool for pool in _pools(config) if pool.gpus > 0), tuple(_actors(config)))


def _pools(config: VerlConfig) -> list[Pool]:
    cpus = _bundle_cpus(config)
    pools = [_pool(config, "global_pool", "trainer", cpus, least=1)]
    reward = _REWARD[config.schema.minor >= (0, 7)]
    if config.get(f"{reward}.enable_resource_pool") is True:
        pools.append(_pool(config, "reward_pool", reward, cpus))
    if config.get("distillation.enabled") is True:
        pools.append(_pool(config, "teacher_pool", "distillation", cpus))
    if _is_v1(config) and config.get("trainer.v1.trainer_mode") == "separate_async":
        pools += _standalone_replicas(config)
    return pools


def _pool(config: VerlConfig, name: str, block: str, cpus: int, least: int = 0) -> Pool:
    return Pool(
        name, _number(config, f"{block}.nnodes", least), _number(config, f"{block}.n_gpus_per_node", least), cpus
    )


def _standalone_replicas(config: VerlConfig) -> list[Pool]:
    sizes = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
    replica = 1
    for size in sizes:
        replica *= max(1, _number(config, f"{ROLLOUT}.{size}", 1))
    nodes, gpus = _number(config, f"{ROLLOUT}.nnodes"), _number(config, f"{ROLLOUT}.n_gpus_per_node")
    on_node = max(1, min(gpus, replica))
    return [
        Pool(f"rollout_pool_{number}", replica // on_node, on_node, _STANDALONE_CPUS, strict=False)
        for number in range(nodes * gpus // replica)
    ]


def _actors(config: VerlConfig) -> list[Actors]:
    found = []
    if _is_v1(config):
        found.append(Actors("TransferQueue controller", 1))
        if config.get("transfer_queue.backend.storage_backend") == "SimpleStorage":
            found.append(Actors("TransferQueue storage unit", _number(config, UNITS), pinned=True))
    elif config.schema.minor < (0, 9):
        found.append(Actors("task runner", 1))
    if config.schema.minor < (0, 7):
        replica = max(1, _number(config, f"{ROLLOUT}.tensor_model_parallel_size", 1))
        gpus = _number(config, "trainer.nnodes", 1) * _number(config, "trainer.n_gpus_per_node", 1)
        if config.get(f"{ROLLOUT}.mode") == "async":
            found.append(Actors("rollout HTTP server", gpus // replica))
    return found


def _bundle_cpus(config: VerlConfig) -> int:
    return COLOCATED_CPUS if config.schema.minor >= (0, 7) else 1


def _is_v1(config: VerlConfig) -> bool:
    return config.schema.minor >= (0, 9) and config.get("trainer.use_v1") is not False


def _number(config: VerlConfig, key: str, least: int = 0) -> int:
    value = config.get(key)
    return max(least, value) if isinstance(value, int) and not isinstance(value, bool) else least


def place(demand: Demand, rooms: Sequence[Room]) -> tuple[Unplaced, ...]:
    """Return what finds no place on the nodes; empty when all does.

    Bound actors are dealt out as they are by name of the nodes; groups go, the widest first, to the fullest node that
    still holds them; actors that may run anywhere take what is left.
    """
    left = list(rooms)
    missing: list[Unplaced] = []
    for actors in demand.actors:
        for number in range(actors.count if actors.pinned and left else 0):
            at = number % len(left)
            if left[at].cpus < 1:
                missing.append(Unplaced(actors.name, number, 1, 0, (left[at],)))
            else:
                left[at] = replace(left[at], cpus=left[at].cpus - 1)
    wanted = [(pool.name, node, *size) for pool in demand.pools for node, size in _groups(pool)]
    wanted += [(free.name, number, 1, 0) for free in demand.actors if not free.pinned for number in range(free.count)]
    for what, number, cpus, gpus in sorted(wanted, key=lambda one: (-one[3], -one[2])):
        fits = [at for at, room in enumerate(left) if room.gpus >= gpus and room.cpus >= cpus]
        if not fits:
            missing.append(Unplaced(what, number, cpus, gpus, tuple(left)))
            continue
        at = min(fits, key=lambda index: (left[index].gpus, left[index].cpus) if gpus else (0, -left[index].cpus))
        left[at] = replace(left[at], cpus=left[at].cpus - cpus, gpus=left[at].gpus - gpus)
    return tuple(missing)


def _groups(pool: Pool) -> list[tuple[int, tuple[int, int]]]:
    """Return `(node of the pool, (CPUs, GPUs))` of all that must lie together."""
    together = pool.gpus_per_node if pool.strict else 1
    size = together * pool.cpus_per_gpu, together
    return [(node, size) for node in range(pool.nodes) for _ in range(pool.gpus_per_node // together)]
