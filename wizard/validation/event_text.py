"""Events of a run as lines for people: `validate` and `--plain` print them."""

from __future__ import annotations

from wizard.text import gib, printable, printable_lines
from wizard.validation.events import Event


def event_text(event: Event) -> str:
    """Return an event as lines for people; empty for what only one rank need tell."""
    return printable_lines(_text(event))


def _text(event: Event) -> str:
    data = event.data
    if event.kind == "failure":
        what = f"{data.get('exception')}: {printable(str(data.get('message')))}"
        return f"rank {event.rank} on {event.node or 'no node'}  {event.step}: {what}\n"
    if event.rank != 0:
        return ""
    if event.kind == "step_finished":
        return f"{event.step:12} done in {float(data['seconds']):.2f} s\n"
    if event.kind == "metric":
        return "".join(f"  {name:30} {_value(value)}\n" for name, value in data.items())
    if event.kind == "memory":
        sizes = (f"{name.removesuffix('_bytes')} {gib(value)}" for name, value in data.items() if name != "phase")
        return f"  memory after {data['phase']}: {', '.join(sizes)}\n"
    if event.kind == "log":
        return f"  note: {printable(str(data['message']))}\n"
    return ""


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(str(value))
