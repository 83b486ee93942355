"""Expansions of macros (Mangling.rst, "Entities")."""

from __future__ import annotations

from machtrace.demangler.swift.machine import Machine
from machtrace.demangler.swift.nodes import (
    DECLARATION_NAMES,
    Kind,
    Node,
    NotUnderstoodError,
)

_ROLES = {
    "a": "accessor",
    "r": "memberAttribute",
    "m": "member",
    "p": "peer",
    "c": "conformance",
    "e": "extension",
    "q": "preamble",
    "b": "body",
}
"""Of attached macros, by letter."""
_EXPANSIONS = frozenset({Kind.ATTACHED_MACRO, Kind.FREESTANDING_MACRO, Kind.MACRO_LOCATION})
"""What an expansion may be in, beside declarations."""


def macro_expansion(machine: Machine) -> Node:
    """``fM``: the expansion of a macro: attached, freestanding, or a name made for one."""
    c = machine.character()
    if c == "X":
        return _location(machine)
    if role := _ROLES.get(c):
        return _attached(machine, role)
    if c == "f":
        return _freestanding(machine, Kind.FREESTANDING_MACRO)
    if c == "u":
        return _freestanding(machine, Kind.MACRO_UNIQUE_NAME)
    raise NotUnderstoodError


def _location(machine: Machine) -> Node:
    """A place in a file, by line and column counted from 0."""
    line, column = machine.index(), machine.index()
    file, module = machine.need(Kind.IDENTIFIER), machine.need(Kind.IDENTIFIER)
    words = f"module {{0}} file {{1}} line {line} column {column}"
    return Node(Kind.MACRO_LOCATION, [module, file], words)


def _context(machine: Machine) -> Node:
    return machine.pop_any(_EXPANSIONS) or machine.context()


def _attached(machine: Machine, role: str) -> Node:
    macro = machine.need(Kind.IDENTIFIER)
    name = machine.need_any(DECLARATION_NAMES)
    context = _context(machine)
    return Node(Kind.ATTACHED_MACRO, [context, name, macro], role, machine.index())


def _freestanding(machine: Machine, kind: Kind) -> Node:
    macro = machine.need(Kind.IDENTIFIER)
    children = [macro]
    if kind is Kind.FREESTANDING_MACRO and (private := machine.pop(Kind.PRIVATE_NAME)):
        children.append(private)
    context = _context(machine)
    return Node(kind, [context, *children], index=machine.index())
