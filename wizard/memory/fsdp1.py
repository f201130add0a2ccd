"""FSDP1's allocations in the order it makes them: torch 2.11–2.13 `distributed/fsdp/_runtime_utils.py`.

A unit is one flat parameter, gathered without a second copy. Autograd gathers a unit's gradients into a flat bf16
tensor, which stays alive beside its fp32 cast until the reduce-scatter is issued. The root (embedding, head, norm)
stays gathered from forward to the end of backward. With one rank torch switches to NO_SHARD.
"""

from __future__ import annotations

from wizard.memory.ends import after_head, before_norm, end_of_layers, reloaded_bytes
from wizard.memory.ledger import Ledger
from wizard.memory.losses import logits_bytes
from wizard.memory.settings import Step
from wizard.memory.shapes import Block, ModelShape
from wizard.memory.units import steps


class Fsdp1:
    """Forward and backward of one micro-batch after another, written into a ledger."""

    def __init__(self, shape: ModelShape, step: Step, ledger: Ledger) -> None:
        self.shape, self.step, self.ledger = shape, step, ledger
        self.accumulated = 0.0
        """Bytes of unsharded gradients that no_sync keeps."""
        self.waiting = 0.0
        """Bytes of gradients that wait for the root's post-backward."""
        self.root = shape.parameters - sum(block.parameters * block.repeat for block in shape.blocks)
        wrapped = sum(block.trainable * block.repeat for block in shape.blocks if block.wrapped)
        self.root_trainable = shape.trainable - wrapped
        self.sharding = step.ranks > 1
        self.root_gathered = False
        # verl wraps every adapter on its own, so what is gathered ahead of a layer's backward are its adapters: the
        # layer before comes with the last of them, when most of this one's activations are gone.
        self.prefetches_early = shape.trainable == shape.parameters

    def forward(self, *, train: bool) -> None:
        """Run the model to the logits, which stay held with what backward needs."""
        shape, step, ledger = self.shape, self.step, self.ledger
        hidden = step.compute_bytes * shape.hidden * step.tokens
        if not self.root_gathered:
            self._gather(self.root, "root gathered")
            self.root_gathered = True
        ledger.hold("activations", hidden, "embedding")
        for index, block in enumerate(shape.blocks):
            for count in steps(block.repeat):
                self._block_forward(block, f"block {index} forward", train=train)
                ledger.hold("activations", (count - 1) * self._kept(block) if train else 0.0)
                if self._stays_gathered:
                    ledger.hold("unsharded", (count - 1) * self._weight(block.parameters), stream="gather")
        end_of_layers(shape, step, ledger, train=train)
        ledger.hold("logits", self._logits(), "head forward")
        if train:
            after_head(shape, step, ledger)
        else:
            ledger.drop("activations", hidden)
        if not self.sharding:
            self._free_root()

    def backward(self, *, sync: bool, first: bool) -> None:
        """Run from the gradient of the logits to the input.

        Args:
            sync: gradients are reduced in this micro-batch.
            first: no gradient exists yet.
        """
        shape, step, ledger = self.shape, self.step, self.ledger
        hidden = step.compute_bytes * shape.hidden * step.tokens
        if not self.root_gathered:
            self._gather(self.root, "root gathered again")
            self.root_gathered = True
        if shape.blocks and not self._stays_gathered:
            self._gather(shape.blocks[-1].parameters, "last block prefetch")
        if shape.trainable_ends:
            self._wait(shape.embedding_parameters if shape.tied else shape.head_parameters)
        ledger.hold("activations", hidden, "head backward")
        ledger.drop("logits", self._logits())
        ledger.touch("final norm backward", activations=4.0 * 4 * shape.hidden * step.tokens)
        before_norm(shape, step, ledger)
        for index in range(len(shape.blocks) - 1, -1, -1):
            block = shape.blocks[index]
            counts = list(steps(block.repeat))
            for position, count in enumerate(reversed(counts)):
                last = position == len(counts) - 1
                before = block if not last else (shape.blocks[index - 1] if index else None)
                self._block_backward(block, before, f"block {index}", sync=sync, first=first)
                if count > 1:
                    self._book(block, count - 1, sync=sync, first=first)
        embedding = shape.embedding_parameters if shape.trainable_ends else 0
        if shape.tied:
            ledger.touch("embedding backward", gradients=self._weight(embedding))
        else:
            self._wait(embedding)
            ledger.touch("embedding backward")
        ledger.drop("activations", hidden)
        self._reduce(self.root, self.root_trainable, "root", self.waiting, sync=sync, first=first)
        self.waiting = 0.0

    def _block_forward(self, block: Block, at: str, *, train: bool) -> None:
        tokens, ledger = self.step.tokens, self.ledger
        self._gather(block.parameters, at)
        if train and not self.step.gradient_checkpointing:
            kept = block.saved_bytes_per_token + block.kept_forward_bytes_per_token
            ledger.touch(at, activations=kept * tokens + block.weight_copies_bytes)
        else:
            ledger.touch(at, activations=block.forward_bytes_per_token * tokens + block.weight_copies_bytes)
        if train:
            ledger.hold("activations", self._kept(block))
        if not self._stays_gathered:
            ledger.drop("unsharded", self._weight(block.parameters), stream="gather")

    def _block_backward(self, block: Block, before: Block | None, name: str, *, sync: bool, first: bool) -> None:
        step, ledger = self.step, self.ledger
        prefetched = before.parameters if before is not None and not self._stays_gathered else 0
        if self.prefetches_early:
            self._gather(prefetched, f"{name} prefetch")
        held = not step.gradient_checkpointing and not step.activation_offload
        there = block.saved_bytes_per_token * step.tokens + block.weight_copies_bytes if held else 0.0
        there -= reloaded_bytes(self.shape, step, block.saved_bytes_per_token)
        for moment in block.backward:
            grads = self._weight(moment.gradient_parameters) * block.trainable / max(1, block.parameters)
            size = moment.bytes_per_token * step.tokens + moment.constant_bytes - there
            ledger.touch(f"{name} {moment.label}", activations=size, gradients=grads)
        ledger.drop("activations", self._kept(block))
        if not self.prefetches_early:
            self._gather(prefetched, f"{name} prefetch")
        if block.wrapped:
            grads = self._weight(block.trainable)
            ledger.hold("gradients", grads)
            self._reduce(block.parameters, block.trainable, name, grads, sync=sync, first=first)
        else:
            self._wait(block.trainable)

    def _book(self, block: Block, count: int, *, sync: bool, first: bool) -> None:
        """Account for `count` further equal blocks whose backward looked like the last one's."""
        self.ledger.drop("activations", count * self._kept(block))
        if self._stays_gathered:
            self.ledger.drop("unsharded", count * self._weight(block.parameters), stream="gather")
        if not block.wrapped:
            self._wait(count * block.trainable)
        elif sync:
            self._release_accumulated(count * block.trainable)
            self._shard_gradient(count * block.trainable, first=first)
        elif first:
            self._accumulate(count * block.trainable)

    def _reduce(self, parameters: float, trainable: float, name: str, grads: float, *, sync: bool, first: bool) -> None:
        """Post-backward of a unit whose separate gradients, `grads` bytes, are held."""
        step, ledger = self.step, self.ledger
        flat = self._weight(trainable)
        ledger.hold("gradients", flat, f"{name} gradients made flat")
        ledger.drop("gradients", grads)
        # An accumulated flat gradient is added to in place.
        if self.accumulated and not first:
            ledger.drop("gradients", flat)
        if name != "root":
            ledger.drop("unsharded", self._weight(parameters), stream="gather")
        elif sync or not self.sharding:
            self._free_root()
        if not sync:
            if first:
                self.accumulated += flat
            return
        cast = step.reduce_bytes * trainable if step.reduce_bytes != step.compute_bytes else 0.0
        if trainable % step.ranks:
            # A flat gradient that the ranks do not divide is copied into a padded one.
            cast += step.reduce_bytes * trainable
        shard = step.reduce_bytes * trainable / step.ranks if self.sharding else 0.0
        ledger.touch(f"{name} reduce-scatter", stream="reduce", unsharded=cast, gradients=shard)
        if self.accumulated and not first:
            self._release_accumulated(trainable)
        else:
            ledger.drop("gradients", flat)
        self._shard_gradient(trainable, first=first)

    def _wait(self, elements: float) -> None:
        """Hold bf16 gradients of parameters whose unit ends later."""
        self.waiting += self._weight(elements)
        self.ledger.hold("gradients", self._weight(elements))

    def _accumulate(self, elements: float) -> None:
        self.accumulated += self._weight(elements)
        self.ledger.hold("gradients", self._weight(elements))

    def _release_accumulated(self, elements: float) -> None:
        size = min(self.accumulated, self._weight(elements))
        self.accumulated -= size
        self.ledger.drop("gradients", size)

    def _shard_gradient(self, elements: float, *, first: bool) -> None:
        if first or self.step.no_sync:
            self.ledger.hold("gradients", self.step.master_bytes * elements / self.step.ranks, stream="reduce")

    def _gather(self, parameters: float, at: str) -> None:
        step = self.step
        self.ledger.hold("unsharded", self._weight(parameters), stream="gather")
        # The shard is cast before the gather unless it has the compute dtype already.
        staged = self.sharding and step.master_bytes != step.compute_bytes
        self.ledger.touch(at, stream="gather", unsharded=self._weight(parameters) / step.ranks if staged else 0.0)

    @property
    def _stays_gathered(self) -> bool:
        """SHARD_GRAD_OP: units stay gathered from forward to backward."""
        return self.sharding and not self.step.reshard_after_forward

    def _free_root(self) -> None:
        self.root_gathered = False
        self.ledger.drop("unsharded", self._weight(self.root), stream="gather")

    def _weight(self, parameters: float) -> float:
        return float(self.step.compute_bytes * parameters)

    def _kept(self, block: Block) -> float:
        """Bytes one block keeps between forward and backward."""
        step = self.step
        if step.activation_offload:
            return 0.0
        if not step.gradient_checkpointing:
            return block.saved_bytes_per_token * step.tokens + block.weight_copies_bytes
        return float(step.compute_bytes * self.shape.hidden * step.tokens)

    def _logits(self) -> float:
        return logits_bytes(self.shape, self.step)
