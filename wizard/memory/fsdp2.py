"""FSDP2's allocations in the order it makes them: torch 2.11–2.13 `distributed/fsdp/_fully_shard/_fsdp_param_group.py`.

A unit is gathered into one flat buffer and copied out into its parameters. In forward the flat buffer lives until the
next unit has been gathered; in backward it is freed after the copy-out and the unit before is gathered at once.
Gradients are copied into a fp32 reduce-scatter input, which lives until the next unit's post-backward.
"""

from __future__ import annotations

from wizard.memory.ends import after_head, before_norm, end_of_layers
from wizard.memory.engine import Engine, Sync
from wizard.memory.ledger import Ledger
from wizard.memory.losses import logits_bytes
from wizard.memory.settings import Step
from wizard.memory.shapes import Block, ModelShape


class Fsdp2(Engine):
    """fully_shard."""

    def __init__(self, shape: ModelShape, step: Step, ledger: Ledger) -> None:
        super().__init__(shape, step, ledger)
        self.flat = 0.0
        """Bytes of the flat buffer that the last gather left."""
        self.reducing = 0.0
        """Bytes of the reduce-scatter input in flight."""

    @property
    def accumulated_bytes(self) -> int:
        return self.step.reduce_bytes

    @property
    def stays_gathered(self) -> bool:
        return not self.step.reshard_after_forward

    def forward(self, *, train: bool) -> None:
        shape, step, ledger = self.shape, self.step, self.ledger
        embedding, head = self._own_units()
        self._gather(self.root, "root")
        self._gather(embedding, "embedding")
        ledger.hold("activations", self.hidden, "embedding forward")
        self._reshard(embedding)
        self._layers_forward(train=train)
        end_of_layers(shape, step, ledger, train=train)
        self._gather(head, "head")
        ledger.hold("logits", logits_bytes(shape, step), "head forward")
        after_head(shape, step, ledger, train=train)
        self._reshard(head)
        self._reshard(self.root)
        self._free_flat()

    def backward(self, sync: Sync) -> None:
        shape, step, ledger = self.shape, self.step, self.ledger
        embedding, head = self._own_units()
        # verl's offload checkpoints every FSDP unit, the head too: its logits are computed again.
        again = logits_bytes(shape, step) if head and step.activation_offload and step.gradient_checkpointing else 0.0
        ledger.hold("logits", again, "head recomputed")
        self._gather_again(self.root, "root")
        self._gather_again(head, "head")
        self._prefetch(shape.blocks[-1].parameters if shape.blocks else embedding)
        self._wait_for_head()
        ledger.hold("activations", self.hidden, "head backward")
        ledger.drop("logits", logits_bytes(shape, step) + again)
        if head:
            self._reduce(head, self._trainable(head), "head", sync, self.waiting, lingers=True)
            self.waiting = 0.0
        before_norm(shape, step, ledger)
        self._layers_backward(sync)
        if embedding:
            self._gather_prefetched(embedding, "embedding")
            gradients = self._bytes(self._trainable(embedding))
            ledger.hold("gradients", gradients, "embedding backward")
            ledger.drop("activations", self.hidden)
            self._reduce(embedding, self._trainable(embedding), "embedding", sync, gradients, lingers=True)
        else:
            self._ends_backward()
        self._reduce(self.root, self.root_trainable, "root", sync, self.waiting)
        self.waiting = 0.0
        ledger.drop("unsharded", self.reducing)
        self.reducing = 0.0

    def _own_units(self) -> tuple[int, int]:
        """Elements of the embedding's and the head's unit; 0 where they belong to the root."""
        shape = self.shape
        return (0, 0) if shape.ends_in_root else (shape.embedding_parameters, shape.head_parameters)

    def _block_forward(self, block: Block, at: str, *, train: bool) -> None:
        self._gather(block.parameters, at)
        self._compute_forward(block, at, train=train)
        self._reshard(block.parameters)

    def _block_backward(self, block: Block, before: Block | None, name: str, sync: Sync) -> None:
        self._gather_prefetched(block.parameters, name)
        self._prefetch(before.parameters if before is not None else self._own_units()[0])
        self._compute_backward(block, name)
        if block.wrapped:
            gradients = self._bytes(block.trainable)
            self.ledger.hold("gradients", gradients, f"{name} gradients")
            self._reduce(block.parameters, block.trainable, name, sync, gradients)
        else:
            self._wait(block.trainable)

    def _reduce(
        self, parameters: float, trainable: float, name: str, sync: Sync, gradients: float, *, lingers: bool = False
    ) -> None:
        """Post-backward of a unit whose gradients, `gradients` bytes, are held.

        `lingers`: the unit has one parameter. foreach_reduce's loop variable keeps a unit's last gradient to its end.
        """
        step, ledger = self.step, self.ledger
        reduced = float(step.reduce_bytes * trainable)
        self._drop_unit(parameters)
        if not sync.reduces:
            if sync.first:
                # Widened to the reduce dtype; with equal dtypes the gradient itself is kept.
                self._accumulate(trainable)
                ledger.touch(
                    f"{name} gradient kept", gradients=0.0 if step.reduce_bytes > step.compute_bytes else -gradients
                )
            ledger.drop("gradients", gradients)
            return
        if self.accumulated:
            # Added into what was kept, which is the source then.
            ledger.drop("gradients", gradients)
            gradients = 0.0
        ledger.drop("unsharded", self.reducing)
        self.reducing = reduced
        ledger.hold("unsharded", reduced, f"{name} reduce-scatter input")
        lingers = lingers and step.ranks > 1
        if not lingers:
            self._free_sources(trainable, gradients)
        ledger.touch(f"{name} reduce-scatter", stream="reduce", gradients=reduced / step.ranks)
        if step.reduce_bytes != step.master_bytes:
            cast = (step.reduce_bytes + step.master_bytes) * trainable / step.ranks
            ledger.touch(f"{name} gradient cast", stream="reduce", gradients=cast)
        if lingers:
            self._free_sources(trainable, gradients)
        self._shard_gradient(trainable, sync)

    def _free_sources(self, trainable: float, gradients: float) -> None:
        self.ledger.drop("gradients", gradients)
        self._release_accumulated(trainable)

    def _gather(self, parameters: float, at: str) -> None:
        """Forward: the flat buffer before is freed after this unit's copy-out: wait_for_unshard's local variable
        `prev_all_gather_state` keeps it until then."""
        if not parameters:
            return
        step, flat = self.step, self._flat(parameters)
        # Shards are cast into a staging buffer unless they have the compute dtype already.
        staged = flat / step.ranks if step.master_bytes != step.compute_bytes else 0.0
        self.ledger.hold("unsharded", flat, stream="gather")
        self.ledger.touch(f"{at} gather", stream="gather", unsharded=staged)
        self._hold_unit(parameters, f"{at} gather")
        self._free_flat()
        self.flat = flat

    def _gather_again(self, parameters: float, name: str) -> None:
        """Backward, not prefetched."""
        if parameters and not self.stays_gathered:
            self._prefetch(parameters)
            self._gather_prefetched(parameters, name)

    def _gather_prefetched(self, parameters: float, name: str) -> None:
        """Backward: the flat buffer was gathered ahead and is freed after the copy-out."""
        if not self.stays_gathered:
            self._hold_unit(parameters, f"{name} gathered again")
            self._free_flat()

    def _prefetch(self, parameters: float) -> None:
        self.flat = 0.0 if self.stays_gathered else self._flat(parameters)
        self.ledger.hold("unsharded", self.flat, stream="gather")

    def _reshard(self, parameters: float) -> None:
        """After forward."""
        if not self.stays_gathered:
            self._drop_unit(parameters)

    def _free_flat(self) -> None:
        self.ledger.drop("unsharded", self.flat, stream="gather")
        self.flat = 0.0

    def _flat(self, parameters: float) -> float:
        return self._bytes(parameters) if self.step.ranks > 1 else 0.0
