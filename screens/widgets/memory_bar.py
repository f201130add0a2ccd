"""The predicted peak of one GPU as stacked bars, one a phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.widgets import Static

from wizard.plan import Plan
from wizard.text import gib, printable

if TYPE_CHECKING:
    # Every step knows this bar, and the first of them shows none.
    from wizard.memory.prediction import PhasePeak, Prediction

NARROW = 76
"""Cells a bar is drawn in before its place is known."""
PARTS = {
    "parameters": ("P", "blue"),
    "optimizer": ("O", "magenta"),
    "gradients": ("G", "yellow"),
    "unsharded": ("U", "cyan"),
    "activations": ("A", "green"),
    "logits": ("L", "red"),
    "rollout_weights": ("R", "bright_blue"),
    "kv_cache": ("K", "bright_cyan"),
    "workspace": ("W", "white"),
}
"""Letter and colour of each cause: the letters alone tell them apart."""
LEGEND = (
    "P parameters, O optimizer, G gradients, U unsharded units, A activations, L logits, R rollout weights, "
    "K KV cache, W workspace, · other processes"
)


def phase_line(phase: PhasePeak, capacity_bytes: int, width: int) -> Text:
    """Return one phase as `name [PPOOAA   ] 17.8 of 80.0 GiB`, `width` cells in all."""
    needed = phase.needed_bytes
    sizes = f" {gib(needed)}" + (f" of {gib(capacity_bytes)}" if capacity_bytes else "")
    over = capacity_bytes and needed > capacity_bytes
    sizes += " TOO MUCH" if over else ""
    name = f"{phase.name.replace('_', ' '):15}"
    cells = max(4, width - len(name) - len(sizes) - 2)
    whole = max(capacity_bytes, needed, 1)
    line = Text(name)
    line.append("[")
    drawn, summed = 0, 0
    order = list(PARTS)
    for cause in sorted(phase.breakdown, key=lambda name: order.index(name) if name in PARTS else len(order)):
        size = phase.breakdown[cause]
        letter, colour = PARTS.get(cause, ("?", ""))
        summed += size
        upto = round(cells * summed / whole)
        line.append(letter * (upto - drawn), style=colour)
        drawn = upto
    upto = round(cells * needed / whole)
    line.append("·" * max(0, upto - drawn))
    line.append(" " * max(0, cells - max(drawn, upto)) + "]")
    line.append(sizes, style="bold red" if over else "")
    return line


def memory_text(prediction: Prediction, width: int, *, only_peak: bool = False) -> Text:
    """Return all phases by the GPUs they run on, or the one that needs most, and the host's share."""
    from wizard.memory.text import group_text

    lines: list[Text] = []
    for group in prediction.groups:
        if prediction.has_groups and not only_peak:
            lines.append(Text(group_text(group), style="bold"))
        phases = [phase for phase in group.phases if not only_peak or phase is prediction.peak]
        lines += [phase_line(phase, prediction.gpu_memory_bytes, width) for phase in phases]
    host = f"host memory a node: {gib(prediction.host_bytes_per_node)}"
    if prediction.host_memory_bytes:
        host += f" of {gib(prediction.host_memory_bytes)}"
    if prediction.fits_host is False:
        host += " TOO MUCH"
    budget = prediction.largest_token_budget
    if budget is not None:
        host += f"; largest token budget that fits: {budget:,}"
    return Text("\n").join([*lines, Text(host)])


class MemoryBar(Static):
    """Shows the prediction for a Plan; says what is missing where there is none."""

    DEFAULT_CSS = "MemoryBar { height: auto; }"

    def __init__(self, *, only_peak: bool = False, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._only_peak = only_peak
        self._plan: Plan | None = None
        self._prediction: Prediction | None = None
        self._missing = ""

    def show(self, plan: Plan) -> None:
        """Predict and draw, if the Plan changed."""
        from wizard.memory import PredictionError, predict

        if plan == self._plan:
            return
        self._plan = plan
        try:
            self._prediction, self._missing = predict(plan), ""
        except PredictionError as error:
            self._prediction, self._missing = None, str(error)
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if self._prediction is None:
            self.update(Text(printable(self._missing)))
        else:
            width = max(40, self.size.width or NARROW)
            self.update(memory_text(self._prediction, width, only_peak=self._only_peak))
