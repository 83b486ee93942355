"""Names in mangled C++ expressions that depend on template arguments: ``<unresolved-name>``."""

from __future__ import annotations

from machtrace.demangler.itanium.cursor import Cursor
from machtrace.demangler.itanium.nodes import Node


def parse_unresolved_name(cursor: Cursor, *, is_global: bool) -> Node:
    """``<unresolved-name>``; ``is_global``: a ``gs`` was before it."""
    if cursor.take("srN"):
        scope = _arguments_after(cursor, _unresolved_type(cursor))
        while not cursor.take("E"):
            scope = _within(cursor, scope, _simple_identifier(cursor))
        return _within(cursor, scope, _base_name(cursor))
    if not cursor.take("sr"):
        return _from_root(cursor, _base_name(cursor), is_global=is_global)
    if not cursor.name[cursor.at].isdigit():
        scope = _arguments_after(cursor, _unresolved_type(cursor))
        return _within(cursor, scope, _base_name(cursor))
    scope = _from_root(cursor, _simple_identifier(cursor), is_global=is_global)
    while not cursor.take("E"):
        scope = _within(cursor, scope, _simple_identifier(cursor))
    return _within(cursor, scope, _base_name(cursor))


def _from_root(cursor: Cursor, name: Node, *, is_global: bool) -> Node:
    return cursor.lift(lambda of: Node(f"::{of.text}"), name) if is_global else name


def _within(cursor: Cursor, scope: Node, name: Node) -> Node:
    return cursor.lift(lambda of, one: Node(f"{of.text}::{one.text}"), scope, name)


def _arguments_after(cursor: Cursor, name: Node) -> Node:
    if cursor.name[cursor.at] != "I":
        return name
    arguments = cursor.template_arguments(remember=False)
    return cursor.lift(lambda of, some: Node(of.text + some.text), name, arguments)


def _unresolved_type(cursor: Cursor) -> Node:
    letter = cursor.name[cursor.at]
    if letter == "T":
        node = cursor.template_parameter()
    elif letter == "D":
        node = cursor.decltype()
    elif cursor.name.startswith("St", cursor.at):
        node = cursor.unscoped_name_or_substitution()[0]
    else:
        return cursor.unscoped_name_or_substitution()[0]
    cursor.substitutions.append(node)
    return node


def _simple_identifier(cursor: Cursor) -> Node:
    return _arguments_after(cursor, Node(cursor.source_name()))


def _base_name(cursor: Cursor) -> Node:
    if cursor.name[cursor.at].isdigit():
        return _simple_identifier(cursor)
    if cursor.take("dn"):
        if cursor.name[cursor.at].isdigit():
            of = _simple_identifier(cursor)
        else:
            of = _unresolved_type(cursor)
        return cursor.lift(lambda one: Node(f"~{one.text}"), of)
    cursor.take("on")
    return _arguments_after(cursor, cursor.operator_symbol())
