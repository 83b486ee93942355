"""Conformances to protocols (Mangling.rst, "Generics" and "Globals")."""

from __future__ import annotations

from machtrace.demangler.swift.generics import popped_protocol
from machtrace.demangler.swift.machine import Machine, by_style, phrase
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError

_CONFORMANCES = frozenset(
    {
        Kind.CONCRETE_CONFORMANCE,
        Kind.PACK_CONFORMANCE,
        Kind.DEPENDENT_CONFORMANCE,
        Kind.OPAQUE_CONFORMANCE,
    }
)


def popped_conformance(machine: Machine) -> Node:
    """The last nodes as a conformance: a type, a protocol, a module, and a generic signature."""
    signature = machine.pop(Kind.GENERIC_SIGNATURE)
    module = machine.need_module()
    protocol = popped_protocol(machine)
    type_ = machine.pop(Kind.TYPE)
    behaviour = None
    if type_ is None:
        behaviour = machine.need(Kind.IDENTIFIER)
        type_ = machine.need(Kind.TYPE)
    if signature:
        type_ = Node(Kind.TYPE, [Node(Kind.DEPENDENT_GENERIC_TYPE, [signature, type_])])
    if behaviour:
        words = "property behavior storage of {2} in {0} : {1}"
        return phrase(words, type_, protocol, module)
    return by_style(phrase("{0} : {1} in {2}", type_, protocol, module), type_)


def concrete_conformance(machine: Machine) -> Node:
    """``HC``: of a type, with the conformances that it takes."""
    conditions = _conformances(machine)
    reference = machine.pop(Kind.CONFORMANCE_REFERENCE)
    if reference is None:
        machine.need_module()
        words = "protocol conformance ref (retroactive) {0}"
        reference = Node(Kind.CONFORMANCE_REFERENCE, [popped_protocol(machine)], words)
    type_ = machine.need(Kind.TYPE)
    words = "concrete protocol conformance {0} to {1}"
    if conditions:
        words += " with conditional requirements: ({2})"
    children = [type_, reference, Node(Kind.LIST, conditions, ", ")]
    return Node(Kind.CONCRETE_CONFORMANCE, children, words)


def pack_conformance(machine: Machine) -> Node:
    """``HX``: of the types of a pack."""
    conformances = _conformances(machine)
    words = "pack protocol conformance ({0})" if conformances else "pack protocol conformance "
    return Node(Kind.PACK_CONFORMANCE, [Node(Kind.LIST, conformances, ", ")], words)


def _conformances(machine: Machine) -> list[Node]:
    if machine.pop(Kind.EMPTY_LIST):
        return []
    conformances, first = [], False
    while not first:
        first = machine.first_element()
        conformances.append(machine.need_any(_CONFORMANCES))
    conformances.reverse()
    return conformances


def _number(machine: Machine) -> str:
    """Which of the requirements it is, as it is printed; 1 is an unknown one, 0 none."""
    number = machine.index()
    if number == 0:
        raise NotUnderstoodError
    return "" if number == 1 else f"#{number - 2} "


def root_conformance(machine: Machine) -> Node:
    """``HD``: that a generic signature requires."""
    words = f"dependent root protocol conformance {_number(machine)}{{0}} to {{1}}"
    protocol = popped_protocol(machine)
    return Node(Kind.DEPENDENT_CONFORMANCE, [machine.need(Kind.TYPE), protocol], words)


def inherited_conformance(machine: Machine) -> Node:
    """``HI``: that a protocol inherits."""
    words = f"dependent inherited protocol conformance {_number(machine)}{{0}} to {{1}}"
    protocol = popped_protocol(machine)
    nested = machine.need(Kind.DEPENDENT_CONFORMANCE)
    return Node(Kind.DEPENDENT_CONFORMANCE, [nested, protocol], words)


def associated_conformance(machine: Machine) -> Node:
    """``HA``: that a protocol requires of an associated type."""
    words = f"dependent associated protocol conformance {_number(machine)}{{0}} to {{1}}"
    protocol = popped_protocol(machine)
    of = phrase("dependent associated conformance {0}{1}", machine.need(Kind.TYPE), protocol)
    nested = machine.need(Kind.DEPENDENT_CONFORMANCE)
    return Node(Kind.DEPENDENT_CONFORMANCE, [nested, of], words)


def opaque_conformance(machine: Machine) -> Node:
    """``HO``: of an opaque result type."""
    type_ = machine.need(Kind.TYPE)
    conformance = machine.need(Kind.DEPENDENT_CONFORMANCE)
    words = "opaque result conformance {0} of {1}"
    return Node(Kind.OPAQUE_CONFORMANCE, [conformance, type_], words)


def conformance_in_type_module(machine: Machine) -> Node:
    """``HP``: written in the module of the type."""
    words = "protocol conformance ref (type's module) {0}"
    return Node(Kind.CONFORMANCE_REFERENCE, [popped_protocol(machine)], words)


def conformance_in_protocol_module(machine: Machine) -> Node:
    """``Hp``: written in the module of the protocol."""
    words = "protocol conformance ref (protocol's module) {0}"
    return Node(Kind.CONFORMANCE_REFERENCE, [popped_protocol(machine)], words)


def retroactive_conformance(machine: Machine) -> Node:
    """``g``: written in neither's module."""
    number = machine.index()
    words = f"retroactive @ {number}{{0}}"
    return Node(Kind.RETROACTIVE_CONFORMANCE, [machine.need_any(_CONFORMANCES)], words)
