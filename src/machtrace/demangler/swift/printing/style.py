"""How much of a Swift name is printed, and what pieces it is printed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from string import Formatter

from machtrace.demangler.swift.nodes import FAILURES, Node

Pieces = Sequence[str | Node | Callable[[], None]]
"""Texts, nodes to print, and calls that change how the rest is printed."""

_MAX_NESTED = 1 << 13
"""Characters of mangled names in the name that are read."""


class Style:
    """The form of one name, and the state of its printing.

    Args:
        parse: reads mangled names that stand in the name; raises NotUnderstoodError.
        simplified: whether modules, types of arguments and the like are left out.
    """

    __slots__ = ("_parse", "_room", "requirements", "simplified", "specialised")

    def __init__(self, parse: Callable[[str], Node], *, simplified: bool) -> None:
        self.simplified = simplified
        self.requirements = not simplified
        """Whether ``where`` and what follows it are printed."""
        self.specialised = False
        """Whether the function was printed as specialised."""
        self._parse = parse
        self._room = _MAX_NESTED

    def show_requirements(self) -> None:
        """From here on."""
        self.requirements = True

    def hide_requirements(self) -> None:
        """From here on."""
        self.requirements = False

    def nested(self, name: str) -> Node | None:
        """The tree of a mangled name in the name, or None."""
        self._room -= len(name)
        if self._room < 0:
            return None
        try:
            return self._parse(name)
        except FAILURES:
            return None


def phrase_pieces(node: Node, _style: Style) -> Pieces:
    """The words of ``node`` with its children in their places."""
    children = node.children
    return [part if isinstance(part, str) else children[part] for part in _parts(node.text)]


@lru_cache(maxsize=1 << 10)
def _parts(words: str) -> tuple[str | int, ...]:
    """Texts, and numbers of the children between them."""
    parts: list[str | int] = []
    for text, field, _, _ in Formatter().parse(words):
        if text:
            parts.append(text)
        if field is not None:
            parts.append(int(field))
    return tuple(parts)


def joined(nodes: Sequence[Node], separator: str) -> list[str | Node | Callable[[], None]]:
    """``nodes`` with ``separator`` between them."""
    if not separator:
        return list(nodes)
    pieces: list[str | Node | Callable[[], None]] = []
    for node in nodes:
        pieces.append(node)
        pieces.append(separator)
    if pieces:
        pieces.pop()
    return pieces
