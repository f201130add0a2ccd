"""Logits-sized tensors of the loss: verl 0.9.1 `utils/torch_functional.py` under CUDA autocast.

Autocast runs softmax, log_softmax, logsumexp and sum in fp32, so a bf16 input is copied first; the copy stays when
autograd keeps the input (logsumexp) and goes when it keeps the output (softmax).
"""

from __future__ import annotations

from wizard.memory.ledger import Ledger
from wizard.memory.settings import Step
from wizard.memory.shapes import FP32, ModelShape

CHUNK_ROWS = 2048
"""Rows of one chunk: verl's `entropy_from_logits_chunk_size`."""


FUSED_CHUNK_ROWS = 512
"""Rows of one chunk of verl's fused linear: `utils/experimental/torch_functional.py` FusedLinearForPPO."""


def logits_bytes(shape: ModelShape, step: Step) -> float:
    """Return the bytes of one micro-batch's logits; fused kernels never hold them."""
    return 0.0 if step.loss == "fused" else float(step.compute_bytes * shape.head_width * step.tokens)


class Loss:
    """Forward and backward of the loss of one micro-batch, written into a ledger."""

    def __init__(self, shape: ModelShape, step: Step) -> None:
        self.step = step
        rows, width = step.tokens, shape.head_width
        self.width = width
        self.logits = logits_bytes(shape, step)
        self.fp32 = 0.0 if step.loss == "fused" else float(FP32 * width * rows)
        self.cast = self.fp32 if step.compute_bytes < FP32 else 0.0
        self.chunk = float(FP32 * width * min(rows, CHUNK_ROWS))
        self.imitation = float(FP32 * width * min(rows, step.loss_chunk_rows))
        self.kept = 0.0

    def forward(self, ledger: Ledger, *, train: bool) -> None:
        """Go from held logits to log-probabilities (and entropy); what autograd keeps stays held."""
        step = self.step
        if step.loss in ("fused", "value"):
            ledger.touch("fused loss chunk", logits=self._fused_chunk(3))
            return
        if step.scaled_logits:
            ledger.touch("logits / temperature", logits=self.logits)
        self._entropy_forward(ledger, train=train)
        if step.loss == "flash" and self.imitation:
            ledger.touch("cross entropy", logits=2 * self.imitation)
        elif step.loss == "v2" and train:
            self._keep(ledger, self.fp32, "log_softmax rows")
        elif step.loss == "ce32":
            ledger.touch("fp32 cross entropy", logits=self.cast + self.fp32)
            if train:
                self._keep(ledger, self.fp32, "fp32 log_softmax")

    def backward(self, ledger: Ledger) -> None:
        """Go from the loss to the gradient of the logits, which is all that stays held."""
        step, entropy = self.step, self.step.entropy != "none"
        if step.loss in ("fused", "value"):
            ledger.touch("fused loss chunk backward", logits=self._fused_chunk(4))
            return
        if step.loss == "ce32":
            if not entropy:
                ledger.drop("logits", self.logits)
            ledger.touch("fp32 cross entropy backward", logits=2 * self.fp32)
            self._release(ledger, self.fp32)
            ledger.hold("logits", self.logits)
        elif step.loss == "v2":
            if not entropy:
                ledger.drop("logits", self.logits)
            ledger.touch("log_softmax rows backward")
            self._release(ledger, self.fp32)
            ledger.touch("stack of row gradients", logits=2 * self.logits)
            ledger.hold("logits", self.logits)
        elif step.loss == "flash":
            if entropy:
                ledger.hold("logits", self.logits, "cross entropy backward")
            if self.imitation:
                ledger.touch("cross entropy backward", logits=3 * self.imitation)
        if entropy:
            # Chunks are kept as fp32 copies, so the logits themselves go with their last reader, the cross entropy.
            early = step.entropy == "chunked" and not step.entropy_checkpointing
            if early:
                ledger.drop("logits", self.logits)
            self._entropy_backward(ledger)
            if not early:
                ledger.drop("logits", self.logits)
        self._release(ledger, self.kept)

    def _fused_chunk(self, copies: int) -> float:
        """Bytes of fp32 logits of one chunk; a critic has none."""
        rows = min(self.step.tokens, FUSED_CHUNK_ROWS)
        return copies * float(FP32 * self.width * rows) if self.step.loss == "fused" else 0.0

    def _keep(self, ledger: Ledger, size_bytes: float, at: str) -> None:
        self.kept += size_bytes
        ledger.hold("logits", size_bytes, at)

    def _release(self, ledger: Ledger, size_bytes: float) -> None:
        self.kept -= size_bytes
        ledger.drop("logits", size_bytes)

    def _entropy_forward(self, ledger: Ledger, *, train: bool) -> None:
        entropy = self.step.entropy
        if entropy == "eager":
            ledger.touch("entropy softmax", logits=self.cast + self.fp32)
            ledger.touch("entropy logsumexp", logits=self.fp32 + self.cast + self.fp32)
            if train and not self.step.entropy_checkpointing:
                self._keep(ledger, self.fp32 + self.cast, "entropy")
        elif entropy == "chunked":
            if train and not self.step.entropy_checkpointing:
                self._keep(ledger, 2 * self.fp32, "entropy")
                ledger.touch("entropy chunk", logits=self.chunk)
            else:
                ledger.touch("entropy chunk", logits=3 * self.chunk)

    def _entropy_backward(self, ledger: Ledger) -> None:
        entropy = self.step.entropy
        if entropy == "eager":
            if self.step.entropy_checkpointing:
                self._keep(ledger, self.fp32 + self.cast, "entropy recomputed")
            ledger.touch("entropy product backward", logits=2 * self.fp32 + self.logits)
            # A checkpoint's recomputation has logits of its own, whose gradient is added to the others at its end.
            logits = self.logits if self.step.entropy_checkpointing else -self.logits
            ledger.touch("entropy logsumexp backward", logits=4 * self.fp32 + logits)
        elif entropy == "chunked":
            if self.step.entropy_checkpointing:
                self._keep(ledger, 2 * self.fp32, "entropy recomputed")
            ledger.touch("entropy chunk backward", logits=5 * self.chunk)
            # A chunk's gradient comes as a full tensor of zeros around it.
            ledger.touch("entropy chunk gradient", logits=self.logits - 1.5 * self.chunk)
        elif entropy == "compiled_chunked":
            # Inductor computes the chunks' gradients side by side before it writes them into one.
            ledger.touch("entropy chunk backward", logits=self.logits + max(0.0, self.fp32 - self.chunk))
        else:
            ledger.touch("entropy backward", logits=self.logits)
