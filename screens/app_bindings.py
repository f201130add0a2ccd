"""The keys that hold on every screen."""

from __future__ import annotations

from textual.binding import Binding, BindingType

LETTERS = (
    ("question_mark", "help", "help", "Help"),
    ("b", "previous_step", "back", "Back"),
    ("n", "next_step", "next", "Next"),
    ("x", "fix", "fix", "Fix"),
    ("g", "steps", "steps", "Steps"),
    ("u", "undo", "undo", "Undo"),
    ("r", "redo", "redo", "Redo"),
    ("q", "quit", "quit", "Quit"),
    ("slash", "command_palette", "commands", "All commands"),
)
"""Commands by letter, where no field takes letters: for terminals that keep the function keys."""
STEP_ACTIONS = frozenset(action for _, action, *_ in LETTERS) - {"quit", "command_palette"}
APP_BINDINGS: list[BindingType] = [
    # Priority: keys that arrive in one burst, as over a slow line, must each meet the focus the one before left.
    Binding("f1", "help", "Help", id="help", tooltip="Explain this step and the field", priority=True),
    Binding("f2", "previous_step", "Back", id="back", tooltip="Step before", priority=True),
    Binding("f3", "next_step", "Next", id="next", tooltip="Next step", priority=True),
    Binding("f4", "fix", "Fix", id="fix", tooltip="Apply the first fix", priority=True),
    Binding("f6", "steps", "Steps", id="steps", tooltip="Choose a step", priority=True),
    Binding("f7", "undo", "Undo", id="undo", tooltip="Take the last change back", priority=True),
    Binding("f8", "redo", "Redo", id="redo", tooltip="Make it again", priority=True, show=False),
    Binding("ctrl+q", "quit", "Quit", id="quit", tooltip="Save and leave", priority=True),
    Binding("ctrl+p", "command_palette", "All commands", id="commands", show=False, priority=True),
    Binding("ctrl+c", "interrupt", "Quit (twice)", id="interrupt", show=False, priority=True),
    Binding("tab", "focus_next", "Next field", id="next-field", show=False, priority=True),
    Binding("shift+tab", "focus_previous", "Field before", id="previous-field", show=False, priority=True),
    Binding("escape", "leave_field", "Leave field", id="leave-field", show=False),
    Binding("ctrl+z", "suspend_process", "To the shell", id="suspend", show=False),
    *(Binding(key, action, about, id=f"{name}-letter", show=False) for key, action, name, about in LETTERS),
]
