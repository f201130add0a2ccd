"""FSDP2's allocations in the order it makes them: torch 2.11–2.13 `distributed/fsdp/_fully_shard/_fsdp_param_group.py`.

A unit is gathered into one flat buffer and copied out into its parameters. In forward the flat buffer lives until the
next unit has been gathered; in backward it is freed after the copy-out and the unit before is gathered at once.
Gradients are copied into a fp32 reduce-scatter input, which lives until the next unit's post-backward.
"""

from __future__ import annotations

from wizard.memory.ends import after_head, before_norm, end_of_layers, reloaded_bytes
from wizard.memory.ledger import Ledger
from wizard.memory.losses import logits_bytes
from wizard.memory.settings import Step
from wizard.memory.shapes import Block, ModelShape
from wizard.memory.units import steps


class Fsdp2:
    """Forward and backward of one micro-batch after another, written into a ledger."""

    def __init__(self, shape: ModelShape, step: Step, ledger: Ledger) -> None:
        self.shape, self.step, self.ledger = shape, step, ledger
        self.flat = 0.0
        """Bytes of the flat buffer that the last gather left."""
        self.reducing = 0.0
        """Bytes of the reduce-scatter input in flight."""
        self.accumulated = 0.0
        """Bytes of unsharded gradients that no_sync keeps."""
        self.waiting = 0.0
        """Bytes of gradients that wait for the root's post-backward."""
        self.root = shape.ends if shape.ends_in_root else shape.root_parameters
        self.root_trainable = self.root if shape.trainable_ends else 0
        for block in shape.blocks:
            if not block.wrapped:
                self.root += block.weights * block.repeat
                self.root_trainable += block.trainable * block.repeat

    def forward(self, *, train: bool) -> None:
        """Run the model to the logits, which stay held with what backward needs."""
        shape, step, ledger = self.shape, self.step, self.ledger
        hidden = step.compute_bytes * shape.hidden * step.tokens
        self._gather(self.root, "root gathered")
        if not shape.ends_in_root:
            self._gather(shape.embedding_parameters, "embedding gathered")
        ledger.hold("activations", hidden, "embedding")
        if not shape.ends_in_root:
            self._reshard(shape.embedding_parameters)
        for index, block in enumerate(shape.blocks):
            for count in steps(block.repeat):
                self._block_forward(block, f"block {index} forward", train=train)
                ledger.hold("activations", (count - 1) * self._kept(block) if train else 0.0)
                if not self.step.reshard_after_forward:
                    ledger.hold("unsharded", (count - 1) * self._weight(block.parameters))
        end_of_layers(shape, step, ledger, train=train)
        if not shape.ends_in_root:
            self._gather(shape.head_parameters, "head gathered")
        ledger.hold("logits", self._logits(), "head forward")
        if train:
            after_head(shape, step, ledger)
        else:
            ledger.drop("activations", hidden)
        if not shape.ends_in_root:
            self._reshard(shape.head_parameters)
        self._reshard(self.root)
        self._free_flat()

    def backward(self, *, sync: bool, first: bool) -> None:
        """Run from the gradient of the logits to the input.

        Args:
            sync: gradients are reduced in this micro-batch.
            first: no gradient exists yet.
        """
        shape, step, ledger = self.shape, self.step, self.ledger
        hidden = step.compute_bytes * shape.hidden * step.tokens
        if step.activation_offload and step.gradient_checkpointing and not shape.ends_in_root:
            # verl's offload checkpoints every FSDP unit, the head too: its logits are computed again.
            ledger.hold("logits", self._logits(), "head recomputed")
        self._gather_backward(self.root, "root gathered again")
        if not shape.ends_in_root:
            self._gather_backward(shape.head_parameters, "head gathered again")
        self._prefetch(self._last_block())
        self._wait(self._trainable_end(shape.embedding_parameters if shape.tied else shape.head_parameters))
        ledger.hold("activations", hidden, "head backward")
        ledger.drop("logits", self._logits())
        if step.activation_offload and step.gradient_checkpointing and not shape.ends_in_root:
            ledger.drop("logits", self._logits())
        if not shape.ends_in_root:
            head = self._trainable_end(shape.head_parameters)
            self._reduce(shape.head_parameters, head, "head", sync=sync, first=first, lingers=True)
            self.waiting = 0.0
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
        embedding = self._trainable_end(shape.embedding_parameters)
        if not shape.ends_in_root:
            self._gather_prefetched(shape.embedding_parameters, "embedding")
            ledger.hold("gradients", self._weight(embedding), "embedding backward")
            ledger.drop("activations", hidden)
            self._reduce(shape.embedding_parameters, embedding, "embedding", sync=sync, first=first, lingers=True)
        else:
            if shape.tied:
                # Embedding and head give a gradient each to the one weight: autograd adds them into a third tensor.
                ledger.touch("embedding backward", gradients=self._weight(embedding))
            else:
                self._wait(embedding)
                ledger.touch("embedding backward")
            ledger.drop("activations", hidden)
        self._reduce(self.root, self.root_trainable, "root", sync=sync, first=first, held=self.waiting)
        self.waiting = 0.0
        ledger.drop("unsharded", self.reducing)
        self.reducing = 0.0

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
        self._reshard(block.parameters)

    def _block_backward(self, block: Block, before: Block | None, name: str, *, sync: bool, first: bool) -> None:
        step, ledger = self.step, self.ledger
        self._gather_prefetched(block.parameters, name)
        self._prefetch(self._ends(before))
        held = not step.gradient_checkpointing and not step.activation_offload
        there = block.saved_bytes_per_token * step.tokens + block.weight_copies_bytes if held else 0.0
        there -= reloaded_bytes(self.shape, step, block.saved_bytes_per_token)
        for moment in block.backward:
            size = moment.bytes_per_token * step.tokens + moment.constant_bytes - there
            grads = self._weight(moment.gradient_parameters) * block.trainable / max(1, block.parameters)
            ledger.touch(f"{name} {moment.label}", activations=size, gradients=grads)
        ledger.drop("activations", self._kept(block))
        if block.wrapped:
            ledger.hold("gradients", self._weight(block.trainable), f"{name} gradients")
            self._reduce(block.parameters, block.trainable, name, sync=sync, first=first)
        else:
            self._wait(block.trainable)

    def _book(self, block: Block, count: int, *, sync: bool, first: bool) -> None:
        """Account for `count` further equal blocks whose backward looked like the last one's."""
        self.ledger.drop("activations", count * self._kept(block))
        if not self.step.reshard_after_forward:
            self.ledger.drop("unsharded", count * self._weight(block.parameters))
        if not block.wrapped:
            self._wait(count * block.trainable)
        elif sync:
            self._release_accumulated(count * block.trainable)
            self._shard_gradient(count * block.trainable, first=first)
        elif first:
            self._accumulate(count * block.trainable)

    def _reduce(
        self,
        parameters: float,
        trainable: float,
        name: str,
        *,
        sync: bool,
        first: bool,
        held: float | None = None,
        lingers: bool = False,
    ) -> None:
        """Post-backward of a unit whose gradients (`held` bytes, by default bf16 of all trainable) are held.

        `lingers`: the unit has one parameter. foreach_reduce's loop variable keeps a unit's last gradient to its end.
        """
        step, ledger = self.step, self.ledger
        grads = self._weight(trainable) if held is None else held
        reduce_bytes = step.reduce_bytes * trainable
        ledger.drop("unsharded", self._weight(parameters))
        if not sync:
            widened = step.reduce_bytes > step.compute_bytes
            if first and widened:
                self._accumulate(trainable)
                ledger.touch(f"{name} gradient kept in fp32")
            elif first:
                self.accumulated += grads
                ledger.hold("gradients", grads)
            ledger.drop("gradients", grads)
            return
        accumulated = min(self.accumulated, float(reduce_bytes))
        if accumulated:
            ledger.drop("gradients", grads)
            grads = 0.0
        ledger.drop("unsharded", self.reducing)
        self.reducing = float(reduce_bytes)
        ledger.hold("unsharded", reduce_bytes, f"{name} reduce-scatter input")
        lingers = lingers and step.ranks > 1
        if not lingers:
            ledger.drop("gradients", grads)
            self._release_accumulated(trainable)
        ledger.touch(f"{name} reduce-scatter", stream="reduce", gradients=reduce_bytes / step.ranks)
        if step.reduce_bytes != step.master_bytes:
            cast_bytes = (step.reduce_bytes + step.master_bytes) * trainable / step.ranks
            ledger.touch(f"{name} gradient cast", stream="reduce", gradients=cast_bytes)
        if lingers:
            ledger.drop("gradients", grads)
            self._release_accumulated(trainable)
        self._shard_gradient(trainable, first=first)

    def _wait(self, elements: float) -> None:
        """Hold bf16 gradients of parameters whose unit ends later."""
        size = self._weight(elements) if elements else 0.0
        self.waiting += size
        self.ledger.hold("gradients", size)

    def _accumulate(self, elements: float) -> None:
        self.accumulated += self.step.reduce_bytes * elements
        self.ledger.hold("gradients", self.step.reduce_bytes * elements)

    def _release_accumulated(self, elements: float) -> None:
        size = min(self.accumulated, self.step.reduce_bytes * elements)
        self.accumulated -= size
        self.ledger.drop("gradients", size)

    def _shard_gradient(self, elements: float, *, first: bool) -> None:
        # With no_sync the last micro-batch is the first that has sharded gradients.
        if (first or self.step.no_sync) and not self.step.offload_policy:
            self.ledger.hold("gradients", self.step.master_bytes * elements / self.step.ranks, stream="reduce")

    def _gather(self, parameters: float, at: str) -> None:
        """Forward: the flat buffer before is freed after this unit's copy-out: wait_for_unshard's local variable
        `prev_all_gather_state` keeps it until then."""
        if not parameters:
            return
        step, flat = self.step, self._flat(parameters)
        staged = step.compute_bytes * parameters / step.ranks if step.ranks > 1 else 0.0
        self.ledger.hold("unsharded", flat, stream="gather")
        self.ledger.touch(at, stream="gather", unsharded=staged)
        self.ledger.hold("unsharded", self._weight(parameters), f"{at} gather")
        self._free_flat()
        self.flat = flat

    def _gather_backward(self, parameters: float, at: str) -> None:
        if parameters and self.step.reshard_after_forward:
            flat = self._flat(parameters)
            self.ledger.hold("unsharded", flat, stream="gather")
            self.ledger.hold("unsharded", self._weight(parameters), at)
            self.ledger.drop("unsharded", flat, stream="gather")

    def _gather_prefetched(self, parameters: float, name: str) -> None:
        """Backward: the flat buffer was gathered ahead and is freed after the copy-out."""
        if self.step.reshard_after_forward:
            self.ledger.hold("unsharded", self._weight(parameters), f"{name} gathered again")
            self._free_flat()

    def _prefetch(self, parameters: float) -> None:
        self.flat = self._flat(parameters) if self.step.reshard_after_forward else 0.0
        self.ledger.hold("unsharded", self.flat, stream="gather")

    def _reshard(self, parameters: float) -> None:
        """After forward."""
        if self.step.reshard_after_forward:
            self.ledger.drop("unsharded", self._weight(parameters))

    def _free_flat(self) -> None:
        self.ledger.drop("unsharded", self.flat, stream="gather")
        self.flat = 0.0

    def _flat(self, parameters: float) -> float:
        return float(self.step.compute_bytes * parameters) if self.step.ranks > 1 else 0.0

    def _weight(self, parameters: float) -> float:
        """Bytes of gathered parameters, or of their gradients, in compute dtype."""
        return float(self.step.compute_bytes * parameters)

    def _trainable_end(self, parameters: float) -> float:
        return parameters if self.shape.trainable_ends else 0

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

    def _last_block(self) -> float:
        return self._ends(self.shape.blocks[-1] if self.shape.blocks else None)

    def _ends(self, before: Block | None) -> float:
        if before is not None:
            return float(before.parameters)
        return 0.0 if self.shape.ends_in_root else float(self.shape.embedding_parameters)
