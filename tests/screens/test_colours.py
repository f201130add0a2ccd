"""Colours as terminals have them: what is sent for each kind, and that nothing is told by colour alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.color import ColorSystem
from rich.segment import Segment
from screen_driver import to_step, until
from screen_scenes import fixed_host
from terminal import Terminal

from screens.app import WizardApp
from screens.steps import STEPS
from wizard.model.catalog import preset
from wizard.plan import Plan
from wizard.probe.machine import parse_machine

MODEL = "Qwen/Qwen2.5-7B-Instruct"
F3 = b"\x1bOR"
SGR = re.compile(rb"\x1b\[([\d;:]*)m")


def colours(data: bytes) -> set[str]:
    """Kinds of colours that the terminal was sent: `2` of 24 bits, `5` of 256, `16` by name; no defaults."""
    found = set()
    for sent in SGR.finditer(data):
        numbers = iter([int(number or 0) for number in re.split(b"[;:]", sent[1])])
        for number in numbers:
            if number in (38, 48):
                kind = next(numbers)
                found.add(str(kind))
                for _ in range(3 if kind == 2 else 1):
                    next(numbers)
            elif number // 10 in (3, 4, 9, 10) and number not in (39, 49):
                found.add("16")
    return found


@pytest.mark.parametrize(
    ("environment", "arguments", "kinds"),
    [
        ({"NO_COLOR": "1", "COLORTERM": "truecolor"}, (), set()),
        ({"COLORTERM": "truecolor"}, (), {"2"}),
        ({}, (), {"5"}),
        ({"TERM": "screen"}, (), {"16"}),
        ({"COLORTERM": "truecolor"}, ("--theme", "ansi-dark"), {"16"}),
    ],
)
def test_the_terminal_is_sent_the_colours_it_has(
    tmp_path: Path, environment: dict[str, str], arguments: tuple[str, ...], kinds: set[str]
) -> None:
    terminal = Terminal(tmp_path, *arguments, environment=environment)
    try:
        terminal.until(b"1/10")
        sent = terminal.seen
        # A table, then a form, then a list.
        for title in (b"2/10", b"3/10"):
            terminal.send(F3)
            terminal.until(title)
            sent += terminal.seen
        terminal.send(b"\x11")
        assert terminal.end() == 0
        sent += terminal.seen
    finally:
        terminal.close()
    assert colours(sent) == kinds


def plan() -> Plan:
    return Plan(architecture=preset(MODEL), machine=parse_machine("8x80GB,cc9.0")).replace("model.id", MODEL)


def segments(app: WizardApp) -> Iterator[Segment]:
    for strip in app.screen._compositor.render_strips():
        yield from strip


def bare(app: WizardApp) -> list[tuple[str, object]]:
    """Characters and attributes of what is drawn, without colours."""
    return [(segment.text, segment.style and segment.style.without_color) for segment in segments(app)]


async def test_without_colours_the_focus_is_seen_on_everything_that_takes_it(
    app: WizardApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = WizardApp(plan(), app.session.path)
    looks: list[list[tuple[str, object]]] = []
    # Editors of fields have no id: one of each type stands for all, and two steps have nothing else.
    seen: set[tuple[type, str | None]] = set()
    with fixed_host():
        async with app.run_test(size=(80, 60)) as pilot:
            for step in (step for step in STEPS if step.id not in ("offload", "batches")):
                screen = await to_step(pilot, step.id)
                screen.set_focus(None)
                await pilot.pause()
                looks.append(bare(app))
                for widget in screen.focus_chain:
                    if (type(widget), widget.id) in seen:
                        continue
                    seen.add((type(widget), widget.id))
                    screen.set_focus(widget, scroll_visible=False)
                    await until(pilot, lambda: bare(app) not in looks, 10, f"{step.id}: {widget} that looks focused")
                    looks.append(bare(app))


@pytest.mark.parametrize("theme", ["textual-dark", "ansi-dark"])
async def test_no_text_has_the_colour_of_its_ground(app: WizardApp, theme: str) -> None:
    app = WizardApp(plan(), app.session.path, theme=theme)
    wrong = set()
    with fixed_host():
        async with app.run_test(size=(120, 40)) as pilot:
            for step_id in ("environment", "layer_classes", "precision", "review", "validate"):
                await to_step(pilot, step_id)
                wrong |= {(step_id, *found) for segment in segments(app) for found in unreadable(segment)}
    assert wrong == set()


def unreadable(segment: Segment) -> Iterator[tuple[str, str]]:
    """Yield text and kind of terminal where letters have the colour that is behind them."""
    style = segment.style
    if style is None or style.color is None or style.bgcolor is None or not any(map(str.isalnum, segment.text)):
        return
    if not (style.color.is_default and style.bgcolor.is_default):
        for system in (ColorSystem.EIGHT_BIT, ColorSystem.STANDARD):
            if style.color.downgrade(system) == style.bgcolor.downgrade(system):
                yield segment.text, system.name
