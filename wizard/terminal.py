"""What a command prints on a terminal: text from outside cannot steer it, whichever message it comes in."""

from __future__ import annotations

import contextlib
import re
from typing import Any, TextIO, cast

from wizard.scrub import hide_secrets
from wizard.text import printable

_LAYOUT = re.compile(r"([\n\r\t])")


class _Harmless:
    """A text stream that makes control characters visible; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text without control characters; line ends and tabs stay."""
        parts = _LAYOUT.split(text)
        self._stream.write("".join(part if _LAYOUT.fullmatch(part) else printable(part) for part in parts))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Messages(_Harmless):
    """Messages for a person, without secrets: when the terminal is gone nobody can read them, which is no error."""

    def write(self, text: str) -> int:
        """Write text without control characters, if anybody can see it."""
        with contextlib.suppress(OSError):
            super().write(hide_secrets(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, if anybody can see it."""
        with contextlib.suppress(OSError):
            self._stream.flush()


def harmless(stream: TextIO) -> TextIO:
    """Return the stream so that nothing written to it can steer a terminal."""
    return cast(TextIO, _Harmless(stream))


def harmless_messages(stream: TextIO) -> TextIO:
    """Return stderr so that nothing written to it steers a terminal or is secret, and a lost terminal is no error."""
    return cast(TextIO, _Messages(stream))
