"""OmegaConf's own reading of a string with `${…}`, as plain data that can be stored and evaluated without OmegaConf."""

from __future__ import annotations

from typing import Any

from omegaconf.grammar_parser import parse
from omegaconf.grammar_visitor import GrammarVisitor


def parse_interpolation(text: str) -> Any:
    """Return the parse of a string with interpolations.

    That is `{"node": key}`, `{"resolver": name, "args": […]}` or `{"concat": […]}`.
    """
    found: list[Any] = []

    def hold(parsed: dict[str, Any]) -> str:
        found.append(parsed)
        return f"\0{len(found) - 1}\0"

    def node(inter_key: str, memo: Any = None) -> str:
        return hold({"node": inter_key})

    def resolver(name: str, args: tuple[Any, ...], args_str: tuple[str, ...], memo: Any = None) -> str:
        return hold({"resolver": name, "args": [restore(argument) for argument in args]})

    def restore(value: Any) -> Any:
        if not isinstance(value, str):
            return list(value) if isinstance(value, (list, tuple)) else value
        parts = [found[int(part)] if index % 2 else part for index, part in enumerate(value.split("\0"))]
        kept = [part for part in parts if part != ""]
        return kept[0] if len(kept) == 1 else "" if not kept else {"concat": kept}

    # The visitor only passes on what its callbacks return: texts here, where OmegaConf's own return nodes.
    callbacks: dict[str, Any] = {"node_interpolation_callback": node, "resolver_interpolation_callback": resolver}
    visitor = GrammarVisitor(**callbacks, memo=None)
    return restore(visitor.visit(parse(text)))
