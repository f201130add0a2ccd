"""Lines out, lines in, and the words that mean the same at every prompt."""

from __future__ import annotations

from typing import TextIO

from wizard.text import printable, printable_lines

HELP = "?"
COMMANDS = {
    "?": "help on this question",
    ":back": "the question before",
    ":step NAME": "go to a step",
    ":undo": "take the last change back",
    ":quit": "leave; answers are kept",
}
"""Words with a colon, so that no answer can be taken for one."""


class Move(Exception):
    """The person goes elsewhere instead of answering."""


class Back(Move):
    """To the question before."""


class Undo(Move):
    """Take the last change back, and ask again."""


class GoTo(Move):
    """To the step of that name, as typed."""


class Quit(Exception):
    """Leave. `ended`: the input ended, rather than somebody said so."""

    def __init__(self, *, ended: bool = False) -> None:
        super().__init__()
        self.ended = ended


class Talk:
    """A conversation. Whatever was read is echoed only where the terminal does not do so itself."""

    def __init__(self, read_from: TextIO, write_to: TextIO) -> None:
        self._in, self._out = read_from, write_to
        self._echo = not read_from.isatty()

    def say(self, text: str = "") -> None:
        """Write lines; nothing in them steers the terminal."""
        self._out.write(printable_lines(text) + "\n")
        self._out.flush()

    def ask(self, question: str, help: str = "") -> str:
        """Return the answer without blanks around it; `?` shows the help and asks again.

        Raises:
            Move, Quit: the person goes elsewhere, or the input has ended.
        """
        while True:
            self._out.write(f"{printable(question)} > ")
            self._out.flush()
            line = self._in.readline()
            if self._echo:
                self._out.write(printable(line.rstrip("\n")) + "\n")
            if not line:
                raise Quit(ended=True)
            answer = line.strip()
            if answer == HELP:
                self.say("\n".join(part for part in (help, commands_text()) if part))
            elif answer.startswith(":"):
                self._obey(answer)
            else:
                return answer

    def agree(self, question: str, *, default: bool = False, help: str = "") -> bool:
        """Ask a question with two answers; an empty one is the default.

        Raises:
            Move, Quit: as `ask`.
        """
        offered = "[yes]/no" if default else "yes/[no]"
        while True:
            answer = self.ask(f"{question} {offered}", help).lower()
            if answer in ("y", "yes"):
                return True
            if answer in ("n", "no"):
                return False
            if not answer:
                return default
            self.say("Answer yes or no.")

    def _obey(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if word == ":back":
            raise Back
        if word == ":undo":
            raise Undo
        if word == ":step":
            raise GoTo(rest.strip())
        if word in (":quit", ":q"):
            raise Quit
        self.say(f"{text} is no command.\n{commands_text()}")


def commands_text() -> str:
    """Return what can be said at every prompt, as lines."""
    return "\n".join(f"  {word:11}{meaning}" for word, meaning in COMMANDS.items()) + "\n  Enter      keeps the value"
