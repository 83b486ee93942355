"""Generic parameters, signatures and requirements (Mangling.rst, "Generics").

Generic types and functions with their arguments (Mangling.rst, "Types").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from machtrace.demangler.swift.machine import Machine, last_type, wrapped
from machtrace.demangler.swift.nodes import (
    DECLARATION_NAMES,
    NOMINALS,
    REQUIREMENTS,
    Kind,
    Node,
    NotUnderstoodError,
)

_LETTERS = 26
_INVERTIBLE = ("Copyable", "Escapable")
"""Protocols that types conform to by default, by number."""
_LAYOUTS = {
    "U": "_UnknownLayout",
    "R": "_RefCountedObject",
    "N": "_NativeRefCountedObject",
    "C": "AnyObject",
    "D": "_NativeClass",
    "T": "_Trivial",
    "B": "_BridgeObject",
}
_SIZED_LAYOUTS = {"e": "_Trivial", "m": "_TrivialAtMost", "S": "_TrivialStride"}
_ALIGNED_LAYOUTS = {"E": "_Trivial", "M": "_TrivialAtMost"}


def parameter_name(depth: int, index: int) -> str:
    """Return a generic parameter's name: ``A`` the first, ``B1`` the second one level in."""
    letters, rest = chr(ord("A") + index % _LETTERS), index // _LETTERS
    while rest:
        letters += chr(ord("A") + rest % _LETTERS)
        rest //= _LETTERS
    return letters + str(depth) if depth else letters


def parameter(depth: int, index: int) -> Node:
    """A generic parameter."""
    return Node(Kind.GENERIC_PARAMETER, (), parameter_name(depth, index))


FIRST_PARAMETER = Node(Kind.TYPE, [parameter(0, 0)])


def first_parameter(_machine: Machine) -> Node:
    """``x``: the first generic parameter."""
    return FIRST_PARAMETER


def generic_parameter(machine: Machine) -> Node:
    """``q`` and similar: a generic parameter by depth and number."""
    if machine.skip("z"):
        return FIRST_PARAMETER
    if machine.skip("s"):
        return wrapped(Kind.EXISTENTIAL_SELF, [])
    if machine.skip("d"):
        depth = machine.index() + 1
        return Node(Kind.TYPE, [parameter(depth, machine.index())])
    return Node(Kind.TYPE, [parameter(0, machine.index() + 1)])


def popped_protocol(machine: Machine) -> Node:
    """The last node as a protocol: a type, or a name in a context."""
    if type_ := machine.pop(Kind.TYPE):
        if type_.children[0].kind is not Kind.PROTOCOL:
            raise NotUnderstoodError
        return type_
    name = machine.need_any(DECLARATION_NAMES)
    return wrapped(Kind.PROTOCOL, [machine.context(), name])


def associated_name(machine: Machine) -> Node:
    """An associated type's name, qualified with its protocol where that is on the stack."""
    protocol = machine.pop(Kind.TYPE)
    name = machine.need(Kind.IDENTIFIER)
    if protocol is None:
        return name
    if protocol.children[0].kind is not Kind.PROTOCOL:
        raise NotUnderstoodError
    return Node(Kind.PHRASE, [protocol, name], "{0}.{1}")


def associated_path(machine: Machine) -> Node:
    """A list of associated types, each of the one before."""
    names: list[Node] = []
    first = False
    while not first:
        first = machine.first_element()
        names.append(associated_name(machine))
    names.reverse()
    return Node(Kind.LIST, names, ".")


def member(machine: Machine, base: Node | None) -> Node:
    """An associated type of ``base``, or of the type before its name; may be referred to."""
    name = associated_name(machine)
    base = base or machine.need(Kind.TYPE)
    return machine.substitutable(wrapped(Kind.DEPENDENT_MEMBER, [base, name]))


def member_path(machine: Machine, base: Node | None) -> Node:
    """An associated type of an associated type, and so on."""
    names = associated_path(machine).children
    base = base or machine.need(Kind.TYPE)
    for name in names:
        base = wrapped(Kind.DEPENDENT_MEMBER, [base, name])
    return machine.substitutable(base)


def generic_signature(machine: Machine) -> Node:
    """``l``: requirements of one generic parameter."""
    return _signature(machine, [Node(Kind.PARAMETER_COUNT, index=1)])


def counted_generic_signature(machine: Machine) -> Node:
    """``r`` … ``l``: requirements, and how many generic parameters each depth has."""
    counts = []
    while not machine.skip("l"):
        count = 0 if machine.skip("z") else machine.index() + 1
        counts.append(Node(Kind.PARAMETER_COUNT, index=count))
        machine.spend(1)
    return _signature(machine, counts)


def _signature(machine: Machine, counts: list[Node]) -> Node:
    requirements = []
    while requirement := machine.pop_any(REQUIREMENTS):
        requirements.append(requirement)
    return Node(Kind.GENERIC_SIGNATURE, [*counts, *reversed(requirements)])


def generic_type(machine: Machine) -> Node:
    """``u``: a type with a generic signature of its own."""
    signature = machine.need(Kind.GENERIC_SIGNATURE)
    return wrapped(Kind.DEPENDENT_GENERIC_TYPE, [signature, machine.need(Kind.TYPE)])


def _member_subject(machine: Machine) -> Node:
    return member(machine, generic_parameter(machine))


def _path_subject(machine: Machine) -> Node:
    return member_path(machine, generic_parameter(machine))


def _conforms(machine: Machine, subject: Node) -> Node:
    return Node(Kind.REQUIREMENT, [subject, popped_protocol(machine)], "{0}: {1}")


def _with_type(text: str) -> Callable[[Machine, Node], Node]:
    """The requirement that relates a subject to a type."""
    return lambda machine, subject: Node(Kind.REQUIREMENT, [subject, machine.need(Kind.TYPE)], text)


_inherits, _same_type = _with_type("{0}: {1}"), _with_type("{0} == {1}")


def _pack_marker(_machine: Machine, subject: Node) -> Node:
    return Node(Kind.PACK_MARKER, [subject])


def _value_marker(machine: Machine, subject: Node) -> Node:
    return Node(Kind.VALUE_MARKER, [subject, machine.need(Kind.TYPE)])


def _layout(machine: Machine, subject: Node) -> Node:
    c = machine.character()
    if name := _LAYOUTS.get(c):
        return Node(Kind.REQUIREMENT, [subject], f"{{0}}: {name}")
    if name := _SIZED_LAYOUTS.get(c):
        return Node(Kind.REQUIREMENT, [subject], f"{{0}}: {name}({machine.index()})")
    if name := _ALIGNED_LAYOUTS.get(c):
        size, alignment = machine.index(), machine.index()
        return Node(Kind.REQUIREMENT, [subject], f"{{0}}: {name}({size}, {alignment})")
    raise NotUnderstoodError


class _Form(NamedTuple):
    """A letter after ``R``: where the constrained type is from, and what is required of it."""

    subject: Callable[[Machine], Node]
    requirement: Callable[[Machine, Node], Node]


_FORMS = {
    "V": _Form(generic_parameter, _value_marker),
    "v": _Form(generic_parameter, _pack_marker),
    "c": _Form(_member_subject, _inherits),
    "C": _Form(_path_subject, _inherits),
    "b": _Form(generic_parameter, _inherits),
    "B": _Form(last_type, _inherits),
    "t": _Form(_member_subject, _same_type),
    "T": _Form(_path_subject, _same_type),
    "s": _Form(generic_parameter, _same_type),
    "S": _Form(last_type, _same_type),
    "m": _Form(_member_subject, _layout),
    "M": _Form(_path_subject, _layout),
    "l": _Form(generic_parameter, _layout),
    "L": _Form(last_type, _layout),
    "p": _Form(_member_subject, _conforms),
    "P": _Form(_path_subject, _conforms),
    "Q": _Form(last_type, _conforms),
    "h": _Form(generic_parameter, _with_type("{0}.shape == {1}.shape")),
}
_INVERSES = {"i": generic_parameter, "I": last_type}
_CONFORMANCE = _Form(generic_parameter, _conforms)


def generic_requirement(machine: Machine) -> Node:
    """``R``: what is required of a generic parameter or of an associated type."""
    c = machine.text[machine.at]
    if inverse := _INVERSES.get(c):
        machine.at += 1
        number = machine.index()
        known = number < len(_INVERTIBLE)
        name = _INVERTIBLE[number] if known else f"<bit {number}>"
        return Node(Kind.REQUIREMENT, [inverse(machine)], f"{{0}}: ~Swift.{name}")
    form = _FORMS.get(c)
    if form is None:
        form = _CONFORMANCE
    else:
        machine.at += 1
    return form.requirement(machine, form.subject(machine))


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
"""Kinds without a list of arguments of their own among those of their context."""


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
    bound: Node | None = None
    for nominal, arguments in reversed(path):
        moved = nominal if bound is None else _moved(nominal, bound)
        bound = _applied(moved, arguments) if arguments else moved
    if bound is None:
        raise NotUnderstoodError
    return bound


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
