"""What a validation run shows: a table of steps, measured values, the log. Fed with events, draws twice a second."""

from __future__ import annotations

from collections import deque

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, RichLog, Sparkline, Static

from screens.widgets.steady import Steady
from wizard.memory.compare import compare
from wizard.memory.prediction import Prediction
from wizard.text import count, gib, printable
from wizard.validation.events import Event
from wizard.validation.spec import ValidationSpec

LOG_LINES = 2000
DRAW_SECONDS = 0.5
BEAT_LINES = 100
"""Log lines of one beat that are drawn; a flood would take longer to lay out than the beat lasts."""
LAST_TIMES = 200
"""Measured times in the sparkline: a terminal's width of them."""
_WAITING, _RUNNING, _DONE, _FAILED = "waiting", "running", "done", "FAILED"
_TIMES = ("forward_seconds", "forward_backward_seconds", "step_seconds")
_FACTS = ("parameters", "fsdp_units", "shards", "master_dtype", "param_dtype", "reduce_dtype", "buffer_dtype", "device")


class ValidationPanel(Vertical):
    """Steps with state, ranks and duration; times with a sparkline; facts; log."""

    DEFAULT_CSS = """
    ValidationPanel { height: auto; }
    ValidationPanel DataTable { height: auto; max-height: 11; width: 45; }
    ValidationPanel #numbers { width: 1fr; padding-left: 1; height: auto; }
    ValidationPanel #row { height: auto; }
    ValidationPanel #numbers Static { height: auto; }
    ValidationPanel Sparkline { height: 1; display: none; }
    /* One colour, and the line above the log on a container: what does not change is not sent again. */
    ValidationPanel Sparkline > .sparkline--min-color { color: $primary; }
    ValidationPanel #lines { height: auto; border-top: solid $panel; }
    ValidationPanel RichLog { height: 6; min-height: 3; scrollbar-size-vertical: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self._spec: ValidationSpec | None = None
        self._states: dict[str, list[str]] = {}
        self._seconds: dict[str, float] = {}
        self._values: dict[str, object] = {}
        self._peaks: dict[str, int] = {}
        self._times: deque[float] = deque(maxlen=LAST_TIMES)
        self._lines: deque[str] = deque(maxlen=BEAT_LINES)
        self._left_out = 0
        self._changed = False
        self.prediction: Prediction | None = None
        """Predicted peaks of what runs, None where they cannot be compared."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="row"):
            table: DataTable[Text] = DataTable(cursor_type="none", zebra_stripes=False)
            table.can_focus = False
            yield table
            with Vertical(id="numbers"):
                yield Steady("", id="values", markup=False)
                yield Steady("", id="facts", markup=False)
        yield Sparkline([], id="times")
        with Vertical(id="lines"):
            yield RichLog(id="log", max_lines=LOG_LINES, wrap=True, markup=False, auto_scroll=False)

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for key, width in (("step", 12), ("state", 9), ("ranks", 7), ("seconds", 9)):
            table.add_column(key, key=key, width=width)
        self.set_interval(DRAW_SECONDS, self._draw)

    def begin(self, spec: ValidationSpec) -> None:
        """Forget the last run and show the steps of a new one."""
        self._spec = spec
        self._states = {step: [_WAITING] * spec.world_size for step in spec.steps}
        self._seconds.clear()
        self._values.clear()
        self._peaks.clear()
        self._times.clear()
        self._lines.clear()
        self._left_out = 0
        self.query_one(RichLog).clear()
        table = self.query_one(DataTable)
        table.clear()
        for step in spec.steps:
            table.add_row(step, _WAITING, "", "", key=step)
        self._changed = True

    def feed(self, event: Event) -> None:
        """Take one event into account; it is drawn with the next beat."""
        states = self._states.get(event.step)
        if event.kind == "step_started" and states:
            states[event.rank] = _RUNNING
        elif event.kind == "step_finished" and states:
            states[event.rank] = _DONE
            self._seconds[event.step] = max(self._seconds.get(event.step, 0.0), float(event.data["seconds"]))
        elif event.kind == "failure" and states:
            states[event.rank] = _FAILED
            self.say(f"rank {event.rank}: {event.data.get('exception')}: {event.data.get('message')}")
        elif event.kind == "log":
            self.say(f"rank {event.rank}: {event.data.get('message')}")
        elif event.kind == "metric" and event.rank == 0:
            self._values.update(event.data)
            if "step_seconds" in event.data:
                self._times.append(float(event.data["step_seconds"]))
        elif event.kind == "memory":
            size = int(event.data.get("peak_allocated_bytes") or event.data.get("resident_bytes") or 0)
            phase = str(event.data.get("phase"))
            self._peaks[phase] = max(self._peaks.get(phase, 0), size)
        self._changed = True

    def say(self, line: str) -> None:
        """Add a line to the log."""
        self._left_out += len(self._lines) == self._lines.maxlen
        self._lines.append(printable(line))
        self._changed = True

    def finish(self) -> None:
        """Draw what is left at once."""
        paused, self.paused = self.paused, False
        self._draw()
        self.paused = paused

    def _draw(self) -> None:
        if not self._changed or self.paused:
            return
        self._changed = False
        self._draw_table()
        self.query_one("#values", Static).update("\n".join(self._value_lines()))
        self.query_one("#facts", Static).update("\n".join(self._fact_lines()))
        times = self.query_one(Sparkline)
        if self._times:
            times.display = True
            times.data = list(self._times)
        self._draw_log()

    def _draw_log(self) -> None:
        log = self.query_one(RichLog)
        # Who reads further up stays there.
        at_end = log.is_vertical_scroll_end
        if self._left_out:
            log.write(f"… {self._left_out:,} more lines; all are in the run folder")
        for line in self._lines:
            log.write(line)
        self._lines.clear()
        self._left_out = 0
        if at_end:
            # At once, not after the next refresh: that would draw the lines twice.
            log.scroll_end(animate=False, immediate=True, x_axis=False)

    def _draw_table(self) -> None:
        table = self.query_one(DataTable)
        for step, states in self._states.items():
            state = next((s for s in (_FAILED, _RUNNING) if s in states), None)
            state = state or (_DONE if all(s == _DONE for s in states) else _WAITING)
            if state == _WAITING and _DONE in states:
                state = _RUNNING
            done = states.count(_DONE)
            cells = {
                "state": Text(state, style={"FAILED": "bold red", "done": "green"}.get(state, "")),
                "ranks": Text(f"{done}/{len(states)}" if state != _WAITING else ""),
                "seconds": Text(f"{self._seconds[step]:.2f}" if step in self._seconds else ""),
            }
            for column, cell in cells.items():
                if str(table.get_cell(step, column)) != cell.plain:
                    table.update_cell(step, column, cell)

    def _memory_lines(self) -> list[str]:
        """Return measured peaks beside predicted ones, and why they differ; without those, the largest."""
        compared = compare(self.prediction, self._peaks) if self.prediction else ()
        lines = []
        for entry in compared:
            measured, predicted = gib(entry.measured_bytes), gib(entry.predicted_bytes)
            lines.append(f"{entry.phase}: {measured}, predicted {predicted} ({entry.error:+.0%})")
            if entry.explanation:
                lines.append(f"  {entry.cause}: {entry.explanation}")
        if not compared and self._peaks:
            phase, size = max(self._peaks.items(), key=lambda entry: entry[1])
            lines.append(f"memory: {gib(size)} ({phase})")
        return lines

    def _value_lines(self) -> list[str]:
        """Return what changes as the run goes on."""
        lines = []
        for name in _TIMES:
            if name in self._values:
                lines.append(
                    f"{name.removesuffix('_seconds').replace('_', '+')}: {float(str(self._values[name])):.4g} s"
                )
        if "tokens_per_second" in self._values:
            rate = f"{float(str(self._values['tokens_per_second'])):,.0f} tokens/s"
            mfu = self._values.get("mfu")
            lines.append(rate + (f", MFU {float(str(mfu)):.1%}" if mfu is not None else ""))
        for name in ("loss", "unsharded_loss", "gradient_norm"):
            if name in self._values:
                lines.append(f"{name.replace('_', ' ')}: {float(str(self._values[name])):.6g}")
        return lines + self._memory_lines()

    def _fact_lines(self) -> list[str]:
        """Return what stays once it is known."""
        lines = []
        for name in _FACTS:
            if name in self._values:
                value = self._values[name]
                text = count(value) if name == "parameters" and isinstance(value, int) else str(value)
                lines.append(f"{name.replace('_', ' ')}: {printable(text)}")
        return lines
