"""FSDP1's allocations in the order it makes them: torch 2.11–2.13 `distributed/fsdp/_runtime_utils.py`.

A unit is one flat parameter, gathered without a second copy. Autograd gathers a unit's gradients into a flat bf16
tensor, which stays alive beside its fp32 cast until the reduce-scatter is issued. The root (embedding, head, norm)
stays gathered from forward to the end of backward. With one rank torch switches to NO_SHARD.
"""

from __future__ import annotations

from wizard.memory.ends import after_head, before_norm, end_of_layers
from wizard.memory.engine import Engine, Sync
from wizard.memory.ledger import Ledger
from wizard.memory.losses import logits_bytes
from wizard.memory.settings import Step
from wizard.memory.shapes import Block, ModelShape


class Fsdp1(Engine):
    """FullyShardedDataParallel."""

    unit_stream = "gather"

    def __init__(self, shape: ModelShape, step: Step, ledger: Ledger) -> None:
        super().__init__(shape, step, ledger)
        self.sharding = step.ranks > 1
        self.root_gathered = False
        # verl wraps every adapter on its own, so what is gathered ahead of a layer's backward are its adapters: the
        # layer before comes with the last of them, when most of this one's activations are gone.
        self.prefetches_early = shape.trainable == shape.parameters

    @property
    def accumulated_bytes(self) -> int:
        return self.step.compute_bytes

    @property
    def stays_gathered(self) -> bool:
        return self.sharding and not self.step.reshard_after_forward

    def forward(self, *, train: bool) -> None:
        shape, step, ledger = self.shape, self.step, self.ledger
        self._gather_root("root gathered")
        ledger.hold("activations", self.hidden, "embedding")
        self._layers_forward(train=train)
        end_of_layers(shape, step, ledger, train=train)
        ledger.hold("logits", logits_bytes(shape, step), "head forward")
        after_head(shape, step, ledger, train=train)
        if not self.sharding:
            self._free_root()

    def backward(self, sync: Sync) -> None:
        shape, step, ledger = self.shape, self.step, self.ledger
        self._gather_root("root gathered again")
        if shape.blocks and not self.stays_gathered:
            self._gather(shape.blocks[-1].parameters, "last block prefetch")
        self._wait_for_head()
        ledger.hold("activations", self.hidden, "head backward")
        ledger.drop("logits", logits_bytes(shape, step))
        before_norm(shape, step, ledger)
        self._layers_backward(sync)
        self._ends_backward()
        self._reduce(self.root, self.root_trainable, "root", self.waiting, sync)
        self.waiting = 0.0

    def _block_forward(self, block: Block, at: str, *, train: bool) -> None:
        self._gather(block.parameters, at)
        self._compute_forward(block, at, train=train)
        if not self.stays_gathered:
            self._drop_unit(block.parameters)

    def _block_backward(self, block: Block, before: Block | None, name: str, sync: Sync) -> None:
        prefetched = before.parameters if before is not None and not self.stays_gathered else 0
        if self.prefetches_early:
            self._gather(prefetched, f"{name} prefetch")
        self._compute_backward(block, name)
        if not self.prefetches_early:
            self._gather(prefetched, f"{name} prefetch")
        if block.wrapped:
            gradients = self._bytes(block.trainable)
            self.ledger.hold("gradients", gradients)
            self._reduce(block.parameters, block.trainable, name, gradients, sync)
        else:
            self._wait(block.trainable)

    def _reduce(self, parameters: float, trainable: float, name: str, gradients: float, sync: Sync) -> None:
        """Post-backward of a unit whose separate gradients, `gradients` bytes, are held."""
        step, ledger = self.step, self.ledger
        flat = self._bytes(trainable)
        ledger.hold("gradients", flat, f"{name} gradients made flat")
        ledger.drop("gradients", gradients)
        adds = self.accumulated > 0 and not sync.first
        if adds:
            # An accumulated flat gradient is added to in place.
            ledger.drop("gradients", flat)
        if name != "root":
            self._drop_unit(parameters)
        elif sync.reduces or not self.sharding:
            self._free_root()
        if not sync.reduces:
            self.accumulated += flat if sync.first else 0.0
            return
        cast = step.reduce_bytes * trainable if step.reduce_bytes != step.compute_bytes else 0.0
        if trainable % step.ranks:
            # A flat gradient that the ranks do not divide is copied into a padded one.
            cast += step.reduce_bytes * trainable
        shard = step.reduce_bytes * trainable / step.ranks if self.sharding else 0.0
        ledger.touch(f"{name} reduce-scatter", stream="reduce", unsharded=cast, gradients=shard)
        if adds:
            self._release_accumulated(trainable)
        else:
            ledger.drop("gradients", flat)
        self._shard_gradient(trainable, sync)

    def _gather(self, parameters: float, at: str) -> None:
        step = self.step
        self._hold_unit(parameters)
        # The shard is cast before the gather unless it has the compute dtype already.
        staged = self.sharding and step.master_bytes != step.compute_bytes
        self.ledger.touch(at, stream="gather", unsharded=self._bytes(parameters) / step.ranks if staged else 0.0)

    def _gather_root(self, at: str) -> None:
        if not self.root_gathered:
            self._gather(self.root, at)
            self.root_gathered = True

    def _free_root(self) -> None:
        self.root_gathered = False
        self._drop_unit(self.root)
