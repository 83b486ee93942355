"""Functions, variables and what they are made of (Mangling.rst, "Entities").

Expansions of macros (Mangling.rst, "Entities").
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.functions import (
    popped_function_type,
    popped_labels,
)
from machtrace.demangler.swift.machine import Machine
from machtrace.demangler.swift.nodes import (
    DECLARATION_NAMES,
    ENTITIES,
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
"""Kinds of attached macros, by letter."""
_EXPANSIONS = frozenset({Kind.ATTACHED_MACRO, Kind.FREESTANDING_MACRO, Kind.MACRO_LOCATION})
"""Contexts of an expansion, besides declarations."""


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


ACCESSORS = {
    "m": "materializeForSet",
    "s": "setter",
    "g": "getter",
    "G": "getter",
    "w": "willset",
    "W": "didset",
    "r": "read",
    "y": "read2",
    "M": "modify",
    "x": "modify2",
    "i": "init",
    "b": "borrow",
    "z": "mutate",
    "aO": "owningMutableAddressor",
    "ao": "nativeOwningMutableAddressor",
    "aP": "nativePinningMutableAddressor",
    "au": "unsafeMutableAddressor",
    "lO": "owningAddressor",
    "lo": "nativeOwningAddressor",
    "lp": "nativePinningAddressor",
    "lu": "unsafeAddressor",
}
"""By their letters (``ACCESSOR``)."""
_ADDRESSORS = frozenset("al")


def function(machine: Machine) -> Node:
    """``F``: a function, with its labels, type and generic signature."""
    signature = machine.pop(Kind.GENERIC_SIGNATURE)
    type_ = popped_function_type(machine, Kind.FUNCTION_TYPE, [])
    labels = popped_labels(machine, type_)
    if signature:
        type_ = Node(Kind.TYPE, [Node(Kind.DEPENDENT_GENERIC_TYPE, [signature, type_])])
    return _named(machine, Kind.FUNCTION, labels, type_)


def _named(machine: Machine, kind: Kind, labels: Node | None, type_: Node) -> Node:
    name = machine.need_any(DECLARATION_NAMES)
    context = machine.context()
    return Node(kind, [context, name, labels, type_] if labels else [context, name, type_])


def _declaration(kind: Kind) -> Callable[[Machine], Node]:
    """The operator of declarations with a name and a type."""

    def operator(machine: Machine) -> Node:
        type_ = machine.need(Kind.TYPE)
        return _named(machine, kind, popped_labels(machine, type_), type_)

    return operator


_variable = _declaration(Kind.VARIABLE)


def variable(machine: Machine) -> Node:
    """``v``: a variable, or an accessor of one."""
    return _accessed(machine, _variable(machine))


def subscript(machine: Machine) -> Node:
    """``i``: a subscript, or an accessor of one."""
    private = machine.pop(Kind.PRIVATE_NAME)
    type_ = machine.need(Kind.TYPE)
    labels = popped_labels(machine, type_)
    children = [machine.context(), labels, type_, private]
    return _accessed(machine, Node(Kind.SUBSCRIPT, [child for child in children if child]))


def _accessed(machine: Machine, storage: Node) -> Node:
    letters = machine.character()
    if letters == "p":
        return storage
    if letters in _ADDRESSORS:
        letters += machine.character()
    if name := ACCESSORS.get(letters):
        return Node(Kind.ACCESSOR, [storage], name)
    raise NotUnderstoodError


def static(machine: Machine) -> Node:
    """``Z``: a member of the type instead of its instances."""
    return Node(Kind.STATIC, [machine.need_any(ENTITIES)])


def function_entity(machine: Machine) -> Node:
    """``f``: initialisers, deinitialisers, closures, default arguments, macros."""
    return machine.choice(_FUNCTION_ENTITIES)(machine)


def _initializer(kind: Kind) -> Callable[[Machine], Node]:
    def operator(machine: Machine) -> Node:
        private = machine.pop(Kind.PRIVATE_NAME)
        type_ = machine.need(Kind.TYPE)
        labels = popped_labels(machine, type_)
        children = [machine.context(), labels, type_, private]
        return Node(kind, [child for child in children if child])

    return operator


def _deinitializer(of_class: str, of_others: str = "") -> Callable[[Machine], Node]:
    def operator(machine: Machine) -> Node:
        context = machine.context()
        is_class = not of_others or context.kind is Kind.CLASS
        return Node(Kind.DEINITIALIZER, [context], of_class if is_class else of_others)

    return operator


def _beginning(text: str) -> Callable[[Machine], Node]:
    return lambda machine: Node(Kind.INITIALIZER, [machine.context()], text)


def _closure(kind: Kind) -> Callable[[Machine], Node]:
    def operator(machine: Machine) -> Node:
        number = machine.index()
        type_ = machine.need(Kind.TYPE)
        return Node(kind, [machine.context(), type_], index=number)

    return operator


def _default_argument(machine: Machine) -> Node:
    number = machine.index()
    return Node(Kind.DEFAULT_ARGUMENT, [machine.context()], index=number)


_FUNCTION_ENTITIES: dict[str, Callable[[Machine], Node]] = {
    "D": _deinitializer("__deallocating_deinit", "deinit"),
    "d": _deinitializer("deinit"),
    "Z": _deinitializer("__isolated_deallocating_deinit", "deinit"),
    "E": _deinitializer("__ivar_destroyer"),
    "e": _deinitializer("__ivar_initializer"),
    "i": _beginning("variable initialization expression"),
    "P": _beginning("property wrapper backing initializer"),
    "W": _beginning("property wrapper init from projected value"),
    "F": _beginning("property wrapped field init accessor"),
    "C": _initializer(Kind.ALLOCATOR),
    "c": _initializer(Kind.CONSTRUCTOR),
    "U": _closure(Kind.EXPLICIT_CLOSURE),
    "u": _closure(Kind.IMPLICIT_CLOSURE),
    "A": _default_argument,
    "m": _declaration(Kind.MACRO),
    "M": macro_expansion,
    "p": _declaration(Kind.GENERIC_PARAMETER_DECLARATION),
}
