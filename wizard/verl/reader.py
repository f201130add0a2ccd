"""Reads a YAML file that somebody else wrote: with limits, as OmegaConf would, and knowing the line of every key."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 4 << 20
MAX_DEPTH = 64
MAX_NODES = 200_000
"""Nodes after aliases are expanded; a billion-laughs file has far more."""

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


_MERGE = "tag:yaml.org,2002:merge"
_SCALAR_TAGS = frozenset(("!", *(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str"))))


class ReadError(ValueError):
    """A file that cannot be read as a configuration; the message names the file, the line and the remedy."""


class _Loader(_Base):  # type: ignore[misc]
    """PyYAML's safe loader with the two deviations of OmegaConf's (omegaconf 2.3 `_utils.py`, `get_yaml_loader`)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"""^(?:
         [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
        |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
        re.VERBOSE,
    ),
    list("-+0123456789."),
)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


@dataclass
class Document:
    """A file's content and where each key stands."""

    source: str
    value: Any
    text: str
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)
    """Line (from 1) of each key and list item, by its path."""

    def at(self, *path: str) -> str:
        """Return `file:line` of a path, or of the nearest thing above it that has a line."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return f"{self.source}:{self.lines[path[:length]]}"
        return self.source


def read_file(path: Path) -> Document:
    """Read one YAML file.

    Raises:
        ReadError: too large, not text, not YAML, a key twice, or built to exhaust memory.
        OSError: the file cannot be opened.
    """
    with path.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ReadError(f"{path}: larger than {MAX_BYTES >> 20} MiB. This is not a training configuration.")
    return read_text(_decode(data, str(path)), str(path))


_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _decode(data: bytes, source: str) -> str:
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8-sig")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ReadError(
            f"{source}:{line}: not {encoding.removesuffix('-sig').upper()} text (byte 0x{data[error.start]:02x}). "
            "Save the file as UTF-8; verl reads nothing else."
        ) from error


def read_text(text: str, source: str) -> Document:
    """Read YAML from a string; `source` names it in messages.

    Raises:
        ReadError: not YAML, a key twice, or built to exhaust memory.
    """
    loader = None
    try:
        _bounded(text, source)
        loader = _Loader(text)
        node = loader.get_single_node()
        document = Document(source, None, text)
        if node is not None:
            document.value = _Builder(loader, document).build(node, ())
        return document
    except yaml.MarkedYAMLError as error:
        raise ReadError(_explain(error, text, source)) from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ReadError(
            f"{source}:{line}: a control character (0x{error.character:x}) that YAML does not allow. Remove it."
        ) from error
    finally:
        if loader is not None:
            loader.dispose()


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _bounded(text: str, source: str) -> None:
    """Refuse what would overflow a stack or the memory, before a node is built: events come one at a time."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ReadError(
                f"{source}:{_line(event)}: nested deeper than {MAX_DEPTH} levels. verl's own goes to 10."
            )
        if count > MAX_NODES:
            raise ReadError(f"{source}: more than {MAX_NODES} values. This is not a training configuration.")


def _explain(error: yaml.MarkedYAMLError, text: str, source: str) -> str:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    shown = text.splitlines()[line - 1] if 0 < line <= len(text.splitlines()) else ""
    if "\t" in shown[: len(shown) - len(shown.lstrip())]:
        return f"{source}:{line}: a tab indents this line; YAML wants spaces."
    problem = str(error.problem or error.context or "not YAML")
    return f"{source}:{line}: {problem}: {shown.strip()[:100]!r}" if shown else f"{source}:{line}: {problem}"


class _Builder:
    """Turns composed nodes into values, noting lines and counting what aliases expand to."""

    def __init__(self, loader: Any, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._nodes = 0
        self._open: set[int] = set()

    def build(self, node: yaml.Node, path: tuple[str, ...]) -> Any:
        self._nodes += 1
        where = f"{self._document.source}:{node.start_mark.line + 1}"
        if self._nodes > MAX_NODES:
            raise ReadError(f"{where}: aliases expand to more than {MAX_NODES} values. Write the values out.")
        if len(path) > MAX_DEPTH:
            raise ReadError(f"{where}: nested deeper than {MAX_DEPTH} levels. verl's own goes to 10.")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, where)
        if id(node) in self._open:
            raise ReadError(f"{where}: an alias refers to the block it stands in. Write the values out.")
        self._open.add(id(node))
        if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "!"):
            raise ReadError(f"{where}: the tag {node.tag} is not read; plain mappings, lists and values only.")
        if isinstance(node, yaml.SequenceNode):
            value: Any = [self._item(child, (*path, str(index))) for index, child in enumerate(node.value)]
        else:
            value = self._mapping(node, path)
        self._open.discard(id(node))
        return value

    def _item(self, node: yaml.Node, path: tuple[str, ...]) -> Any:
        self._document.lines[path] = node.start_mark.line + 1
        return self.build(node, path)

    def _scalar(self, node: yaml.ScalarNode, where: str) -> Any:
        if node.tag not in _SCALAR_TAGS:
            raise ReadError(f"{where}: {node.value[:60]!r} has the tag {node.tag}: write a plain value.")
        try:
            return self._loader.construct_object(node)
        except (ValueError, LookupError) as error:  # PyYAML's constructors take a tag's word for the text's form
            kind = node.tag.rpartition(":")[2]
            raise ReadError(f"{where}: {node.value[:60]!r} cannot be read as {kind}.") from error

    def _mapping(self, node: Any, path: tuple[str, ...]) -> dict[Any, Any]:
        merged: dict[Any, Any] = {}
        own: dict[Any, Any] = {}
        first: dict[Any, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                for key, value in self._merged(value_node, path, line).items():
                    merged.setdefault(key, value)
                continue
            key = self._key(key_node)
            if key in first:
                raise ReadError(
                    f"{self._document.source}:{line}: {key!r} is given twice, first in line {first[key]}. "
                    "Hydra refuses the file; keep one of them."
                )
            first[key] = line
            place = (*path, str(key))
            own[key] = self.build(value_node, place)
            self._document.lines[place] = line
        return {**merged, **own}

    def _merged(self, node: yaml.Node, path: tuple[str, ...], line: int) -> dict[Any, Any]:
        """Return what `<<: *block` or `<<: [*block, *other]` brings, the first block winning."""
        result: dict[Any, Any] = {}
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(source, yaml.MappingNode):
                raise ReadError(f"{self._document.source}:{line}: << takes mappings only.")
            for key, value in self.build(source, path).items():
                result.setdefault(key, value)
        return result

    def _key(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise ReadError(f"{self._document.source}:{node.start_mark.line + 1}: a key must be a single value.")
        return self._scalar(node, f"{self._document.source}:{node.start_mark.line + 1}")


def flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every leaf with its path; a mapping with a key that is no plain name is a leaf."""
    if isinstance(value, dict) and value and all(isinstance(key, str) and "." not in key for key in value):
        for key, child in value.items():
            yield from flat(child, (*path, key))
    else:
        yield path, value
