"""``requires`` expressions in mangled C++ names: section 5.1.6 of the Itanium C++ ABI."""

from __future__ import annotations

from machtrace.demangler.itanium.cursor import Cursor
from machtrace.demangler.itanium.nodes import Node, joined


def parse_requirements(cursor: Cursor) -> Node:
    """``rQ <parameter>+ _ <requirement>+ E`` or ``rq <requirement>+ E``, behind its letters."""
    parameters = []
    if cursor.name[cursor.at - 1] == "Q":
        parameters = cursor.nodes_until("_", cursor.type)
    requirements = cursor.nodes_until("E", lambda: _requirement(cursor))
    if not requirements:
        raise cursor.fail()
    count = len(parameters)

    def made(*nodes: Node) -> Node:
        head = f" ({joined(list(nodes[:count]))})" if count else ""
        return Node(f"requires{head} {{{''.join(node.text for node in nodes[count:])} }}")

    return cursor.lift(made, *parameters, *requirements)


def _requirement(cursor: Cursor) -> Node:
    if cursor.take("X"):
        expression = cursor.expression()
        is_noexcept = cursor.take("N")
        constraint = [cursor.any_name()] if cursor.take("R") else []

        def simple(expression: Node, *constraint: Node) -> Node:
            compound = is_noexcept or constraint
            text = f" {{{expression.text}}}" if compound else f" {expression.text}"
            text += " noexcept" if is_noexcept else ""
            return Node(text + "".join(f" -> {one.text}" for one in constraint) + ";")

        return cursor.lift(simple, expression, *constraint)
    if cursor.take("T"):
        return cursor.lift(lambda of: Node(f" typename {of.text};"), cursor.type())
    cursor.expect("Q")
    return cursor.lift(lambda of: Node(f" requires {of.text};"), cursor.constraint())
