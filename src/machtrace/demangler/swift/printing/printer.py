"""Prints the tree of a Swift name, in the words of ``swift-demangle``.

Nothing here calls itself: a rule turns a node into pieces, which are texts, other nodes, and calls
that change how the rest is printed; a loop takes the pieces one by one. So a name may be as deep
as it likes; how much is printed of one has a limit, because a short name can stand for a very
long one by referring back to its own parts.
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.printing.swift_print_rules import RULES, TEXTS
from machtrace.demangler.swift.printing.style import Style

_MOST_PIECES = 30_000
"""Printed of one name; the longest names in use have some thousands."""
_MOST_CHARACTERS = 1 << 20
"""Printed of one name."""


def printed(root: Node, parse: Callable[[str], Node], *, simplified: bool) -> str:
    """What people read for ``root``.

    Args:
        root: the tree.
        parse: reads mangled names that stand in the name; raises NotUnderstoodError.
        simplified: without modules, types of arguments, and other things of less interest.

    Raises:
        NotUnderstoodError: too much would have to be printed.
        IndexError: a node lacks a part.
    """
    style = Style(parse, simplified=simplified)
    rules = RULES
    texts: list[str] = []
    work: list[str | Node | Callable[[], None]] = [root]
    room, size = _MOST_PIECES, 0
    while work:
        item = work.pop()
        if isinstance(item, str):
            texts.append(item)
            size += len(item)
            continue
        if not isinstance(item, Node):
            item()
            continue
        kind = item.kind
        while kind is Kind.TYPE:
            item = item.children[0]
            kind = item.kind
        if kind in TEXTS:
            texts.append(item.text)
            size += len(item.text)
            room -= 1
        else:
            pieces = rules[kind](item, style)
            work.extend(pieces[::-1])
            room -= len(pieces) + 1
        if room < 0 or size > _MOST_CHARACTERS:
            raise NotUnderstoodError
    return "".join(texts)
