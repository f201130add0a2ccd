"""One rank's allocations over an optimizer update or a log-prob pass, replayed event by event."""

from __future__ import annotations

from wizard.memory.engine import Engine, Sync
from wizard.memory.fsdp1 import Fsdp1
from wizard.memory.fsdp2 import Fsdp2
from wizard.memory.ledger import Ledger
from wizard.memory.losses import Loss
from wizard.memory.settings import CUBLAS_WORKSPACE_BYTES, Step
from wizard.memory.shapes import ModelShape

REPLAYED_MICRO_BATCHES = 3
"""From the second micro-batch on, gradients exist and every one looks the same; with no_sync the last reduces."""


def actor_update(shape: ModelShape, step: Step) -> Ledger:
    """Replay forward, loss, backward and optimizer step; stages `fwd`, `loss`, `bwd`, `opt`."""
    ledger = Ledger()
    ledger.stage("fwd")
    shard = 0.0 if step.offload_policy else shape.parameters / step.ranks
    trained = 0.0 if step.offload_policy else shape.trainable / step.ranks
    ledger.hold("workspace", 2 * CUBLAS_WORKSPACE_BYTES)
    ledger.hold("activations", step.mask_bytes)
    ledger.hold("parameters", step.master_bytes * shard)
    ledger.hold("optimizer", 2 * step.master_bytes * trained, "resident")
    engine = engine_of(shape, step, ledger)
    loss = Loss(shape, step)
    micro_batches = min(step.micro_batches, REPLAYED_MICRO_BATCHES)
    for index in range(micro_batches):
        ledger.stage("fwd")
        engine.forward(train=True)
        ledger.stage("loss")
        loss.forward(ledger, train=True)
        ledger.stage("bwd")
        loss.backward(ledger)
        engine.backward(Sync(reduces=not step.no_sync or index == micro_batches - 1, first=index == 0))
    ledger.drop("activations", step.mask_bytes)
    ledger.stage("opt")
    # foreach AdamW takes the square root of all second moments at once (torch `optim/adam.py` _multi_tensor_adam).
    ledger.touch("AdamW step", optimizer=step.master_bytes * trained)
    return ledger


def log_prob(shape: ModelShape, step: Step) -> Ledger:
    """Replay a forward pass without gradients and its log-probabilities; stages `fwd`, `loss`."""
    ledger = Ledger()
    ledger.stage("fwd")
    shard = 0.0 if step.offload_policy else shape.parameters / step.ranks
    # Only the forward thread has a cuBLAS handle.
    ledger.hold("workspace", CUBLAS_WORKSPACE_BYTES)
    ledger.hold("activations", step.mask_bytes)
    ledger.hold("parameters", step.master_bytes * shard, "resident")
    if step.log_prob_optimizer_resident and not step.offload_policy:
        ledger.hold("optimizer", 2 * step.master_bytes * shape.trainable / step.ranks, "resident")
    engine_of(shape, step, ledger).forward(train=False)
    ledger.stage("loss")
    Loss(shape, step).forward(ledger, train=False)
    return ledger


def engine_of(shape: ModelShape, step: Step, ledger: Ledger) -> Engine:
    """Return the strategy's replay."""
    return Fsdp1(shape, step, ledger) if step.strategy == "fsdp" else Fsdp2(shape, step, ledger)
