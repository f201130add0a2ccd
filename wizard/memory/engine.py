"""What both FSDP versions share: walking the layers, their activations, and gradients that wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from wizard.memory.ends import reloaded_bytes
from wizard.memory.ledger import Ledger
from wizard.memory.settings import Step
from wizard.memory.shapes import Block, ModelShape
from wizard.memory.units import steps


@dataclass(frozen=True)
class Sync:
    """What one micro-batch's backward does with its gradients."""

    reduces: bool
    """They are reduced over the ranks; no_sync leaves that to the last micro-batch."""
    first: bool
    """No gradient exists yet."""


class Engine(ABC):
    """Forward and backward of one micro-batch after another, written into a ledger."""

    unit_stream = "compute"
    """CUDA stream a gathered unit is allocated on."""

    def __init__(self, shape: ModelShape, step: Step, ledger: Ledger) -> None:
        self.shape, self.step, self.ledger = shape, step, ledger
        self.hidden = float(step.compute_bytes * shape.hidden * step.tokens)
        """Bytes of one layer's input."""
        self.accumulated = 0.0
        """Bytes of unsharded gradients that no_sync keeps."""
        self.waiting = 0.0
        """Bytes of gradients that wait for the root's post-backward."""
        ends = 0 if shape.ends_in_root else shape.embedding_parameters + shape.head_parameters
        wrapped = [block for block in shape.blocks if block.wrapped]
        self.root = shape.parameters - ends - sum(block.weights * block.repeat for block in wrapped)
        trained = sum(block.trainable * block.repeat for block in wrapped)
        self.root_trainable = shape.trainable - trained - (ends if shape.trainable_ends else 0)

    @abstractmethod
    def forward(self, *, train: bool) -> None:
        """Run the model to the logits, which stay held with what backward needs."""

    @abstractmethod
    def backward(self, sync: Sync) -> None:
        """Run from the gradient of the logits to the input."""

    @abstractmethod
    def _block_forward(self, block: Block, at: str, *, train: bool) -> None: ...

    @abstractmethod
    def _block_backward(self, block: Block, before: Block | None, name: str, sync: Sync) -> None: ...

    @property
    @abstractmethod
    def accumulated_bytes(self) -> int:
        """Bytes of one element of a gradient that no_sync keeps."""

    @property
    @abstractmethod
    def stays_gathered(self) -> bool:
        """Whether units stay gathered from forward to backward."""

    def _layers_forward(self, *, train: bool) -> None:
        for index, block in enumerate(self.shape.blocks):
            for count in steps(block.repeat):
                self._block_forward(block, f"block {index} forward", train=train)
                self.ledger.hold("activations", (count - 1) * self._kept(block) if train else 0.0)
                if self.stays_gathered:
                    self._hold_unit((count - 1) * block.parameters)

    def _layers_backward(self, sync: Sync) -> None:
        for index, block, before, count in self._backward_order():
            self._block_backward(block, before, f"block {index}", sync)
            self._book(block, count - 1, sync)

    def _backward_order(self) -> Iterator[tuple[int, Block, Block | None, int]]:
        """Yield each replayed block, the one before it in the model, and how many it stands for."""
        blocks = self.shape.blocks
        for index in reversed(range(len(blocks))):
            counts = list(steps(blocks[index].repeat))
            for position in reversed(range(len(counts))):
                before = blocks[index] if position else (blocks[index - 1] if index else None)
                yield index, blocks[index], before, counts[position]

    def _book(self, block: Block, count: int, sync: Sync) -> None:
        """Account for `count` further equal blocks whose backward looked like the last one's."""
        if not count:
            return
        trainable = count * block.trainable
        self.ledger.drop("activations", count * self._kept(block))
        if self.stays_gathered:
            self._drop_unit(count * block.parameters)
        if not block.wrapped:
            self._wait(trainable)
        elif sync.reduces:
            self._release_accumulated(trainable)
            self._shard_gradient(trainable, sync)
        elif sync.first:
            self._accumulate(trainable)

    def _compute_forward(self, block: Block, at: str, *, train: bool) -> None:
        """One layer's forward; what it keeps stays held."""
        per_token = block.forward_bytes_per_token
        if train and not self.step.gradient_checkpointing:
            per_token = block.saved_bytes_per_token + block.kept_forward_bytes_per_token
        self.ledger.touch(at, activations=per_token * self.step.tokens + block.weight_copies_bytes)
        if train:
            self.ledger.hold("activations", self._kept(block))

    def _compute_backward(self, block: Block, name: str) -> None:
        """One layer's backward, with its recomputation; what it kept is freed."""
        step = self.step
        held = not step.gradient_checkpointing and not step.activation_offload
        there = block.saved_bytes_per_token * step.tokens + block.weight_copies_bytes if held else 0.0
        there -= reloaded_bytes(self.shape, step, block.saved_bytes_per_token)
        for moment in block.backward:
            size = moment.bytes_per_token * step.tokens + moment.constant_bytes - there
            gradients = self._bytes(moment.gradient_parameters) * block.trainable / block.weights
            self.ledger.touch(f"{name} {moment.label}", activations=size, gradients=gradients)
        self.ledger.drop("activations", self._kept(block))

    def _ends_backward(self) -> None:
        """The embedding's gradient where embedding and head belong to the root."""
        shape = self.shape
        embedding = self._trainable(shape.embedding_parameters)
        if shape.tied:
            # Embedding and head give a gradient each to the one weight: autograd adds them into a third tensor.
            self.ledger.touch("embedding backward", gradients=self._bytes(embedding))
        else:
            self._wait(embedding)
            self.ledger.touch("embedding backward")
        self.ledger.drop("activations", self.hidden)

    def _wait_for_head(self) -> None:
        shape = self.shape
        self._wait(self._trainable(shape.embedding_parameters if shape.tied else shape.head_parameters))

    def _wait(self, elements: float) -> None:
        """Hold gradients of parameters whose unit ends later."""
        self.waiting += self._bytes(elements)
        self.ledger.hold("gradients", self._bytes(elements))

    def _accumulate(self, elements: float) -> None:
        self.accumulated += self.accumulated_bytes * elements
        self.ledger.hold("gradients", self.accumulated_bytes * elements)

    def _release_accumulated(self, elements: float) -> None:
        size = min(self.accumulated, self.accumulated_bytes * elements)
        self.accumulated -= size
        self.ledger.drop("gradients", size)

    def _shard_gradient(self, elements: float, sync: Sync) -> None:
        # With no_sync the last micro-batch is the first that has sharded gradients.
        if (sync.first or self.step.no_sync) and not self.step.offload_policy:
            self.ledger.hold("gradients", self.step.master_bytes * elements / self.step.ranks, stream="reduce")

    def _hold_unit(self, parameters: float, at: str = "") -> None:
        self.ledger.hold("unsharded", self._bytes(parameters), at, stream=self.unit_stream)

    def _drop_unit(self, parameters: float) -> None:
        self.ledger.drop("unsharded", self._bytes(parameters), stream=self.unit_stream)

    def _bytes(self, elements: float) -> float:
        """Bytes of gathered parameters, or of their gradients, in compute dtype."""
        return float(self.step.compute_bytes * elements)

    def _trainable(self, elements: int) -> int:
        """Of elements outside the layers, those that get gradients."""
        return elements if self.shape.trainable_ends else 0

    def _kept(self, block: Block) -> float:
        """Bytes one layer keeps on the GPU between forward and backward."""
        if self.step.activation_offload:
            return 0.0
        if not self.step.gradient_checkpointing:
            return block.saved_bytes_per_token * self.step.tokens + block.weight_copies_bytes
        return self.hidden
