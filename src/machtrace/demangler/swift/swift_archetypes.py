"""Associated types, opaque types and packs (Mangling.rst, "Types" and "Generics")."""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.swift_bound_generics import arguments_by_level
from machtrace.demangler.swift.generics import (
    FIRST_PARAMETER,
    generic_parameter,
    member,
    member_path,
)
from machtrace.demangler.swift.machine import Machine, wrapped
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError


def archetype(machine: Machine) -> Node:
    """``Q``: a type that stands for others."""
    operator = _ARCHETYPES.get(machine.character())
    if operator is None:
        raise NotUnderstoodError
    return operator(machine)


def _associated_type(machine: Machine) -> Node:
    name = machine.need(Kind.IDENTIFIER)
    base = machine.need(Kind.TYPE)
    return machine.substitutable(wrapped(Kind.ASSOCIATED_TYPE, [base, name]))


def _opaque_return_type_of(machine: Machine) -> Node:
    return Node(Kind.OPAQUE_RETURN_TYPE_OF, [machine.context()])


def _opaque_type(machine: Machine) -> Node:
    number = machine.index()
    levels, _ = arguments_by_level(machine)
    of = machine.stack.pop()
    lists = [Node(Kind.TYPE_LIST, level) for level in reversed(levels)]
    type_ = Node(Kind.OPAQUE_TYPE, [of, *lists], f"{{0}}.{number}")
    return machine.substitutable(Node(Kind.TYPE, [type_]))


def _opaque_return_type(_machine: Machine) -> Node:
    return wrapped(Kind.OPAQUE_RETURN_TYPE, [])


def _numbered_opaque_return_type(machine: Machine) -> Node:
    machine.index()
    return wrapped(Kind.OPAQUE_RETURN_TYPE, [])


def _member(machine: Machine) -> Node:
    return member(machine, None)


def _member_path(machine: Machine) -> Node:
    return member_path(machine, None)


def _parameter_member(machine: Machine) -> Node:
    return member(machine, generic_parameter(machine))


def _parameter_member_path(machine: Machine) -> Node:
    return member_path(machine, generic_parameter(machine))


def _first_parameter_member(machine: Machine) -> Node:
    return member(machine, FIRST_PARAMETER)


def _first_parameter_member_path(machine: Machine) -> Node:
    return member_path(machine, FIRST_PARAMETER)


def _pack_expansion(machine: Machine) -> Node:
    count, pattern = machine.need(Kind.TYPE), machine.need(Kind.TYPE)
    return wrapped(Kind.PACK_EXPANSION, [pattern, count], "repeat {0}")


def _pack_element(machine: Machine) -> Node:
    pack = machine.need(Kind.TYPE)
    return wrapped(Kind.PACK_EXPANSION, [pack], f"/* level: {machine.index()} */ each {{0}}")


def _pack(machine: Machine) -> Node:
    return wrapped(Kind.PACK, machine.types())


def _lowered_pack(machine: Machine) -> Node:
    c = machine.character()
    if c not in "di":
        raise NotUnderstoodError
    return wrapped(Kind.PACK, machine.types(), "@direct " if c == "d" else "@indirect ")


_ARCHETYPES: dict[str, Callable[[Machine], Node]] = {
    "a": _associated_type,
    "O": _opaque_return_type_of,
    "o": _opaque_type,
    "r": _opaque_return_type,
    "R": _numbered_opaque_return_type,
    "x": _member,
    "X": _member_path,
    "y": _parameter_member,
    "Y": _parameter_member_path,
    "z": _first_parameter_member,
    "Z": _first_parameter_member_path,
    "p": _pack_expansion,
    "e": _pack_element,
    "P": _pack,
    "S": _lowered_pack,
}
