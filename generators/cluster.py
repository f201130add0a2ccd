"""Scripts for several nodes: plain Ray, Slurm, and a Kubernetes RayJob. Ray starts on every node, verl on the head."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from generators.heading import heading
from wizard.plan import Plan

PORT = 6379
CPUS_PER_GPU = 3
"""verl 0.9.1 `single_controller/ray/base.py`: each GPU's bundle asks for three CPUs."""


def nodes_of(plan: Plan) -> int:
    """Return the nodes of all roles together."""
    groups = plan.placement.groups
    return max([plan.machine.nodes, *(group.nodes for group in groups)])


def gpus_of(plan: Plan) -> int:
    """Return the GPUs one node gives to Ray."""
    return plan.machine.gpus_per_node or plan.gpus_of_node("actor")


def ray_node_sh(plan: Plan) -> str:
    """Return the script that joins one node: without an argument the head, with the head's address a worker."""
    return (
        "#!/usr/bin/env bash\n"
        + heading(plan, "run it on every node: `./ray_node.sh` on the head, `./ray_node.sh HEAD_ADDRESS` elsewhere")
        + f"""set -euo pipefail

gpus={gpus_of(plan)}
port={PORT}

# CUDA_VISIBLE_DEVICES counts when Ray starts, not when training does.
if [ $# -eq 0 ]; then
  ray start --head --port="$port" --num-gpus="$gpus" --disable-usage-stats
  echo "head is up; join the others with: ./ray_node.sh $(hostname -I | cut -d' ' -f1)"
  echo "when \\`ray status\\` shows {nodes_of(plan) * gpus_of(plan)} GPUs, start ./run.sh here"
else
  ray start --address="$1:$port" --num-gpus="$gpus" --disable-usage-stats
fi
"""
    )


def slurm_sh(plan: Plan) -> str:
    """Return the batch script: one Ray process a node, verl on the first."""
    nodes, gpus, python = nodes_of(plan), gpus_of(plan), shlex.quote(plan.target.python or "python3")
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in plan.trainer.experiment_name)
    return (
        f"""#!/usr/bin/env bash
#SBATCH --job-name={name or "verl"}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --cpus-per-task={CPUS_PER_GPU * gpus + 4}
#SBATCH --exclusive
"""
        + heading(plan, "submit it with sbatch; partition, account and time are yours to add")
        + f"""set -euo pipefail

# Slurm copies the script before it runs it: the folder is the one it was submitted from.
here=${{SLURM_SUBMIT_DIR:-$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)}}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${{nodes[0]}}
head_address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | cut -d' ' -f1)
port={PORT}
gpus={gpus}
python={python}
count='import sys, ray; ray.init(sys.argv[1], logging_level="ERROR"); print(int(ray.cluster_resources().get("GPU", 0)))'

stop() {{ srun --overlap --ntasks="${{#nodes[@]}}" ray stop --force > /dev/null 2>&1 || true; }}
trap stop EXIT

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \\
  ray start --head --node-ip-address="$head_address" --port="$port" --num-gpus="$gpus" --block &
# A worker that comes before the head is up gives up: `ray start` waits for it, within its own limit.
for node in "${{nodes[@]:1}}"; do
  srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" \\
    ray start --address="$head_address:$port" --num-gpus="$gpus" --block &
done

wanted=$((gpus * ${{#nodes[@]}}))
for _ in $(seq 60); do
  joined=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" "$python" -c "$count" "$head_address:$port" || true)
  if [ "${{joined:-0}}" -ge "$wanted" ]; then break; fi
  sleep 5
done
if [ "${{joined:-0}}" -lt "$wanted" ]; then
  echo "only ${{joined:-0}} of $wanted GPUs joined Ray: look at the output of the nodes above" >&2
  exit 1
fi

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" env RAY_ADDRESS="$head_address:$port" "$here/run.sh" "$@"
"""
    )


def rayjob_yaml(plan: Plan, files: dict[str, str]) -> str:
    """Return a RayJob for KubeRay; `files` travel in a ConfigMap beside it."""
    name = "verl-run"
    limits = {"nvidia.com/gpu": gpus_of(plan), "cpu": CPUS_PER_GPU * gpus_of(plan) + 4}
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
