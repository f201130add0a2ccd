"""Scripts for several nodes: plain Ray, Slurm, and a Kubernetes RayJob. Ray starts on every node, verl on the head."""

from __future__ import annotations

import dataclasses
import math
import shlex
from typing import Any

import yaml

from generators.heading import heading
from generators.run_sh import run_sh
from wizard.plan import Plan
from wizard.verl.export import plan_to_config
from wizard.verl.ray_demand import Room, demand_of_plan, place

PORT = 6379
SPARE_CPUS = 4
"""For Ray itself, the trainer's process and its data loaders."""


def nodes_of(plan: Plan) -> int:
    """Return the nodes of all roles together."""
    groups = plan.placement.groups
    return max([plan.machine.nodes, *(group.nodes for group in groups)])


def gpus_of(plan: Plan) -> int:
    """Return the GPUs one node gives to Ray."""
    return plan.machine.gpus_per_node or plan.gpus_of_node("actor")


def cpus_of(plan: Plan) -> int:
    """Return the CPUs a node needs for all that verl asks of Ray: with fewer, Ray waits for ever."""
    nodes, gpus, demand = nodes_of(plan), gpus_of(plan), demand_of_plan(plan, plan_to_config(plan))
    least = math.ceil(demand.cpus / nodes)
    # A mapping that the nodes' GPUs do not hold is the rules' to name.
    enough = (
        cpus
        for cpus in range(least, demand.cpus + 1)
        if all(lacking.lacks_gpus for lacking in place(demand, [Room(f"node {at}", cpus, gpus) for at in range(nodes)]))
    )
    return next(enough, demand.cpus) + SPARE_CPUS


def _python(plan: Plan) -> str:
    return shlex.quote(plan.target.python or "python3")


# Ray of the interpreter that trains, which need not be the one on the PATH. ray 2.60 `_private/worker.py` (init) and
# `scripts/scripts.py` (start) differ in when they use the token that any local run leaves behind.
_RAY = """\
ray=("$python" -m ray.scripts.scripts)
# Where Ray finds a token, a head asks for it, and whoever joins by address does not send it unless told to.
if [ -s ~/.ray/auth_token ]; then export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}"; fi"""


def ray_node_sh(plan: Plan) -> str:
    """Return the script that joins one node: without an argument the head, with the head's address a worker."""
    return (
        "#!/usr/bin/env bash\n"
        + heading(plan, "run it on every node: `./ray_node.sh` on the head, `./ray_node.sh HEAD_ADDRESS` elsewhere")
        + f"""set -euo pipefail

python={_python(plan)}
{_RAY}
gpus={gpus_of(plan)}
port=${{RAY_PORT:-{PORT}}}

# CUDA_VISIBLE_DEVICES counts when Ray starts, not when training does.
if [ $# -eq 0 ]; then
  "${{ray[@]}}" start --head --port="$port" --num-gpus="$gpus" --disable-usage-stats
  echo "head is up; join the others with: ./ray_node.sh $(hostname -I | cut -d' ' -f1)"
  echo "when 'ray status' shows {nodes_of(plan) * gpus_of(plan)} GPUs, start ./run.sh here"
else
  "${{ray[@]}}" start --address="$1:$port" --num-gpus="$gpus" --disable-usage-stats
fi
"""
    )


def slurm_sh(plan: Plan) -> str:
    """Return the batch script: one Ray process a node, verl on the first."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in plan.trainer.experiment_name)
    return (
        f"""#!/usr/bin/env bash
#SBATCH --job-name={name or "verl"}
#SBATCH --nodes={nodes_of(plan)}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus_of(plan)}
#SBATCH --cpus-per-task={cpus_of(plan)}
#SBATCH --exclusive
"""
        + heading(plan, "submit it with sbatch from its own folder; partition, account and time are yours to add")
        + f"""set -euo pipefail

# Slurm copies the script before it runs it: the folder is the one it was submitted from, seen by all nodes.
here=${{SLURM_SUBMIT_DIR:-$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)}}
if [ ! -x "$here/run.sh" ]; then
  echo "$here has no run.sh: submit slurm.sh from the folder it was written to" >&2
  exit 1
fi
python={_python(plan)}
{_RAY}
gpus={gpus_of(plan)}
port=${{RAY_PORT:-{PORT}}}
# Steps no longer inherit it since Slurm 22.05, and Ray would count one CPU.
export SRUN_CPUS_PER_TASK=${{SLURM_CPUS_PER_TASK:-{cpus_of(plan)}}}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
on() {{ srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" "${{@:2}}"; }}
head=${{nodes[0]}}
addresses=$(on "$head" sh -c 'hostname --ip-address; hostname -I')
# Some systems give a host's own name to its loopback, which other nodes cannot reach.
head_address=$(tr -s ' ' '\\n' <<< "$addresses" | grep -vE '^127[.]|:|^$' | head -n 1)
options=(--num-gpus="$gpus" --num-cpus="$SRUN_CPUS_PER_TASK" --disable-usage-stats --block)
count='import sys, ray; ray.init(sys.argv[1], logging_level="ERROR"); print(int(ray.cluster_resources().get("GPU", 0)))'

stop() {{ srun --overlap --ntasks="${{#nodes[@]}}" "${{ray[@]}}" stop --force > /dev/null 2>&1 || true; }}
trap stop EXIT

on "$head" "${{ray[@]}}" start --head --node-ip-address="$head_address" --port="$port" "${{options[@]}}" &
# A worker that comes before the head is up gives up: `ray start` waits for it, within its own limit.
for node in "${{nodes[@]:1}}"; do
  on "$node" "${{ray[@]}}" start --address="$head_address:$port" "${{options[@]}}" &
done

wanted=$((gpus * ${{#nodes[@]}}))
for _ in $(seq 100); do
  joined=$(on "$head" "$python" -c "$count" "$head_address:$port" || true)
  if [ "${{joined:-0}}" -ge "$wanted" ]; then break; fi
  sleep 2
done
if [ "${{joined:-0}}" -lt "$wanted" ]; then
  echo "only ${{joined:-0}} of $wanted GPUs joined Ray: look at the output of the nodes above" >&2
  exit 1
fi

on "$head" env RAY_ADDRESS="$head_address:$port" "$here/run.sh" "$@"
"""
    )


def rayjob_yaml(plan: Plan, files: dict[str, str]) -> str:
    """Return a RayJob for KubeRay; `files` travel in a ConfigMap beside it, where Python is the image's own."""
    image = dataclasses.replace(plan, target=dataclasses.replace(plan.target, python=""))
    files = {**files, "run.sh": run_sh(image)}
    name = "verl-run"
    limits = {"nvidia.com/gpu": gpus_of(plan), "cpu": cpus_of(plan)}
    container: dict[str, Any] = {
        "name": "ray",
        "image": "verlai/verl:REPLACE-WITH-YOUR-IMAGE",
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [
            {"name": "config", "mountPath": "/verl-run"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
        "spec": {
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": name, "defaultMode": 0o755}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        }
    }
    cluster: dict[str, Any] = {"headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": pod}}
    workers = nodes_of(plan) - 1
    if workers:
        cluster["workerGroupSpecs"] = [
            {
                "groupName": "gpu",
                "replicas": workers,
                "minReplicas": workers,
                "maxReplicas": workers,
                "rayStartParams": {},
                "template": pod,
            }
        ]
    documents = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": files},
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": name},
            "spec": {
                "entrypoint": "/verl-run/run.sh",
                "shutdownAfterJobFinishes": True,
                "rayClusterSpec": cluster,
            },
        },
    ]

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            # The same pod for head and workers is written out twice: people edit one of them.
            return True

    text = yaml.dump_all(documents, Dumper=Plain, sort_keys=False, width=120, allow_unicode=True)
    return heading(plan, "kubectl apply -f it, with KubeRay installed and your image filled in") + text
