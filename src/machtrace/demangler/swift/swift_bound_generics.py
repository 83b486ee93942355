"""Generic types and functions with their arguments (Mangling.rst, "Types")."""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.demangler.swift.machine import Machine
from machtrace.demangler.swift.nodes import (
    NOMINALS,
    Kind,
    Node,
    NotUnderstoodError,
)

_WITHOUT_ARGUMENTS = frozenset(
    {
        Kind.VARIABLE,
        Kind.SUBSCRIPT,
        Kind.IMPLICIT_CLOSURE,
        Kind.EXPLICIT_CLOSURE,
        Kind.DEFAULT_ARGUMENT,
        Kind.INITIALIZER,
        Kind.STATIC,
    }
)
"""What has no list of arguments of its own among those of its context."""


def arguments_by_level(machine: Machine) -> tuple[list[list[Node]], list[Node]]:
    """Generic arguments, those of the innermost declaration first, and retroactive conformances."""
    retroactive = machine.pop_all(Kind.RETROACTIVE_CONFORMANCE)
    levels = []
    while True:
        levels.append(machine.pop_all(Kind.TYPE))
        if machine.pop(Kind.EMPTY_LIST):
            return levels, retroactive
        machine.need(Kind.FIRST_ELEMENT)


def bound_generic_type(machine: Machine) -> Node:
    """``G``: a generic type with its arguments, and those of the types that it is in."""
    levels, retroactive = arguments_by_level(machine)
    nominal = machine.need_type()
    if nominal.kind not in NOMINALS:
        raise NotUnderstoodError
    path = _path(nominal, levels)
    machine.spend(len(path))
    bound = _bound(path)
    if retroactive:
        children = [*bound.children, Node(Kind.TYPE_LIST, retroactive)]
        bound = Node(bound.kind, children, bound.text, bound.index)
    return machine.substitutable(Node(Kind.TYPE, [bound]))


def _path(nominal: Node, levels: Sequence[Sequence[Node]]) -> list[tuple[Node, Sequence[Node]]]:
    """``nominal`` and the declarations around it, each with its arguments."""
    path: list[tuple[Node, Sequence[Node]]] = []
    level, node = 0, nominal
    while level < len(levels):
        if node.kind in _WITHOUT_ARGUMENTS:
            path.append((node, ()))
        else:
            path.append((node, levels[level]))
            level += 1
        context = node.children[0]
        node = context.children[1] if context.kind is Kind.EXTENSION else context
    return path


def _bound(path: Sequence[tuple[Node, Sequence[Node]]]) -> Node:
    """The first of ``path`` with its arguments, in those that follow with theirs."""
    found: Node | None = None
    for one, arguments in reversed(path):
        moved = one if found is None else _moved(one, found)
        found = _applied(moved, arguments) if arguments else moved
    if found is None:
        raise NotUnderstoodError
    return found


def _moved(node: Node, context: Node) -> Node:
    """``node`` in ``context`` in place of its own."""
    old = node.children[0]
    if old.kind is Kind.EXTENSION:
        context = Node(Kind.EXTENSION, [old.children[0], context, *old.children[2:]])
    return Node(node.kind, [context, *node.children[1:]], node.text, node.index)


def _applied(node: Node, arguments: Sequence[Node]) -> Node:
    types = Node(Kind.TYPE_LIST, arguments)
    if node.kind in {Kind.FUNCTION, Kind.CONSTRUCTOR}:
        return Node(Kind.BOUND_GENERIC_FUNCTION, [node, types])
    if node.kind not in NOMINALS:
        raise NotUnderstoodError
    return Node(Kind.BOUND_GENERIC, [Node(Kind.TYPE, [node]), types])
