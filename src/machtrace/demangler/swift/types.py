"""Types (Mangling.rst, "Types").

Associated types, opaque types and packs (Mangling.rst, "Types" and "Generics").
"""

from __future__ import annotations

from machtrace.demangler.swift.functions import function_type
from machtrace.demangler.swift.generics import (
    FIRST_PARAMETER,
    arguments_by_level,
    generic_parameter,
    member,
    member_path,
    popped_protocol,
)
from machtrace.demangler.swift.machine import Machine, Operator, fixed, phrase, wrapped
from machtrace.demangler.swift.nodes import (
    DECLARATION_NAMES,
    REQUIREMENTS,
    Kind,
    Node,
    NotUnderstoodError,
)

_BUILTINS = {
    "b": "BridgeObject",
    "B": "UnsafeValueBuffer",
    "e": "Executor",
    "I": "IntLiteral",
    "O": "UnknownObject",
    "o": "NativeObject",
    "p": "RawPointer",
    "j": "Job",
    "D": "DefaultActorStorage",
    "d": "NonDefaultDistributedActorStorage",
    "c": "RawUnsafeContinuation",
    "t": "SILToken",
    "w": "Word",
    "P": "PackIndex",
    "A": "ImplicitActor",
}
_BUILTIN = "Builtin."
_MAX_BUILTIN = 4096


def declared_type(kind: Kind) -> Operator:
    """The operator of a kind of declared types: ``C``, ``V``, ``O``, ``P``, ``a``, ``XY``."""

    def operator(machine: Machine) -> Node:
        name = machine.need_any(DECLARATION_NAMES)
        return machine.substitutable(wrapped(kind, [machine.context(), name]))

    return operator


def builtin_type(machine: Machine) -> Node:
    """``B``: a type of the compiler's own."""
    c = machine.character()
    if name := _BUILTINS.get(c):
        return wrapped(Kind.BUILTIN, [], _BUILTIN + name)
    if c in "fiv":
        return wrapped(Kind.BUILTIN, [], _BUILTIN + _sized_builtin(machine, c))
    if c == "T":
        return wrapped(Kind.BUILTIN_TUPLE, [], "Builtin.TheTupleType")
    if c == "W":
        return wrapped(Kind.SUGARED, [machine.need(Kind.TYPE)], "Builtin.Borrow<{0}>")
    if c == "V":
        element, size = machine.need(Kind.TYPE), machine.need(Kind.TYPE)
        return wrapped(Kind.SUGARED, [size, element], "Builtin.FixedArray<{0}, {1}>")
    raise NotUnderstoodError


def _sized_builtin(machine: Machine, c: str) -> str:
    size = machine.index() - 1
    if not 0 < size <= _MAX_BUILTIN:
        raise NotUnderstoodError
    if c == "f":
        return f"FPIEEE{size}"
    if c == "i":
        return f"Int{size}"
    element = machine.need_type()
    if element.kind is not Kind.BUILTIN:
        raise NotUnderstoodError
    return f"Vec{size}x{element.text.removeprefix(_BUILTIN)}"


def tuple_type(machine: Machine) -> Node:
    """``t``: a tuple; before each type may stand its label, and ``d`` where it is variadic."""
    elements: list[Node] = []
    first = machine.pop(Kind.EMPTY_LIST) is not None
    while not first:
        first = machine.first_element()
        variadic = machine.pop(Kind.VARIADIC) is not None
        label = machine.pop(Kind.IDENTIFIER)
        element = machine.need(Kind.TYPE)
        text = label.text if label else ""
        elements.append(Node(Kind.TUPLE_ELEMENT, [element], text, int(variadic)))
    elements.reverse()
    return wrapped(Kind.TUPLE, elements)


def modified(text: str) -> Operator:
    """The operator of a word before a type: ``z``, ``h``, ``n``, and others."""

    def operator(machine: Machine) -> Node:
        return wrapped(Kind.MODIFIED, [machine.need(Kind.TYPE)], text)

    return operator


def type_of_type(kind: Kind) -> Operator:
    """The operator of a type that is made of one other: ``m``, its metatype, and others."""
    return lambda machine: wrapped(kind, [machine.need(Kind.TYPE)])


def protocol_list(machine: Machine) -> Node:
    """``p``: an existential type."""
    return wrapped(Kind.PROTOCOL_LIST, _protocols(machine))


def _protocols(machine: Machine) -> list[Node]:
    if machine.pop(Kind.EMPTY_LIST):
        return []
    protocols, first = [], False
    while not first:
        first = machine.first_element()
        protocols.append(popped_protocol(machine))
    protocols.reverse()
    return protocols


def integer_type(machine: Machine) -> Node:
    """``$``: an integer that is an argument of a generic type."""
    negative = machine.skip("n")
    number = machine.index()
    return wrapped(Kind.INTEGER, [], str(-number if negative else number))


def special_type(machine: Machine) -> Node:
    """``X``: types that are seldom written."""
    return machine.choice(_SPECIAL)(machine)


def _foreign_function(machine: Machine) -> Node:
    """``Xz``: a C function or block with the type that Clang gives it."""
    c = machine.character()
    if c == "C":
        return function_type(Kind.C_FUNCTION_TYPE, clang=True)(machine)
    if c == "B":
        return function_type(Kind.BLOCK_TYPE, clang=True)(machine)
    raise NotUnderstoodError


_REPRESENTATIONS = {"t": "@thin ", "T": "@thick ", "o": "@objc_metatype "}


def _represented(kind: Kind) -> Operator:
    def operator(machine: Machine) -> Node:
        representation = machine.choice(_REPRESENTATIONS)
        return wrapped(kind, [machine.need(Kind.TYPE)], representation)

    return operator


def _constrained_existential(machine: Machine) -> Node:
    requirements: list[Node] = []
    first = False
    while not first:
        first = machine.first_element()
        requirements.append(machine.need_any(REQUIREMENTS))
    requirements.reverse()
    base = machine.need(Kind.TYPE)
    return wrapped(Kind.CONSTRAINED_EXISTENTIAL, [base, Node(Kind.LIST, requirements, ", ")])


def _with_class(machine: Machine) -> Node:
    superclass = machine.need(Kind.TYPE)
    return wrapped(Kind.PROTOCOL_LIST_WITH_CLASS, [superclass, *_protocols(machine)])


def _box(*, generic: bool) -> Operator:
    """``Xx`` and ``XX``: a box of SIL with its fields; mutable ones are mangled as ``inout``."""

    def operator(machine: Machine) -> Node:
        rest: list[Node] = []
        if generic:
            signature = machine.need(Kind.GENERIC_SIGNATURE)
            rest = [signature, Node(Kind.LIST, machine.types(), ", ")]
        fields = Node(Kind.BOX_LAYOUT, [_field(type_) for type_ in machine.types()])
        return wrapped(Kind.BOX, [fields, *rest])

    return operator


def _field(type_: Node) -> Node:
    inner = type_.children[0]
    if inner.kind is Kind.MODIFIED and inner.text == "inout ":
        return phrase("var {0}", inner.children[0])
    return phrase("let {0}", type_)


def _anonymous_context(machine: Machine) -> Node:
    types = Node(Kind.LIST, machine.types())
    name = machine.need(Kind.IDENTIFIER)
    return Node(Kind.ANONYMOUS_CONTEXT, [machine.context(), name, types])


def _existential_shape(*, generic: bool) -> Operator:
    """``Xg`` and ``XG``: what existential types with constraints have in common."""

    def operator(machine: Machine) -> Node:
        type_ = machine.need(Kind.TYPE)
        if generic and (signature := machine.pop(Kind.GENERIC_SIGNATURE)):
            shape = phrase("existential shape for {0} any {1}", signature, type_)
        else:
            shape = phrase("existential shape for any {0}", type_)
        return Node(Kind.WHERE, [shape])

    return operator


def _sugared(machine: Machine) -> Node:
    """``XS``: types as the source spells them, for debuggers."""
    c = machine.character()
    last = machine.need(Kind.TYPE)
    if c in _SUGAR_OF_TWO:
        return wrapped(Kind.SUGARED, [machine.need(Kind.TYPE), last], _SUGAR_OF_TWO[c])
    if c == "q":
        return wrapped(Kind.OPTIONAL, [last], "?")
    if c in _SUGAR:
        return wrapped(Kind.SUGARED, [last], _SUGAR[c])
    raise NotUnderstoodError


_SUGAR = {"a": "[{0}]", "p": "({0})"}
_SUGAR_OF_TWO = {"A": "[{0} of {1}]", "D": "[{0} : {1}]"}


_SPECIAL: dict[str, Operator] = {
    "E": function_type(Kind.FUNCTION_TYPE),
    "A": function_type(Kind.AUTOCLOSURE_TYPE),
    "f": function_type(Kind.THIN_TYPE),
    "K": function_type(Kind.AUTOCLOSURE_TYPE),
    "U": function_type(Kind.UNCURRIED_TYPE),
    "L": function_type(Kind.BLOCK_TYPE, text="@escaping "),
    "B": function_type(Kind.BLOCK_TYPE),
    "C": function_type(Kind.C_FUNCTION_TYPE),
    "z": _foreign_function,
    "g": _existential_shape(generic=False),
    "G": _existential_shape(generic=True),
    "o": modified("unowned "),
    "u": modified("unowned(unsafe) "),
    "w": modified("weak "),
    "b": lambda machine: wrapped(Kind.SUGARED, [machine.need(Kind.TYPE)], "@box {0}"),
    "D": type_of_type(Kind.DYNAMIC_SELF),
    "M": _represented(Kind.METATYPE),
    "m": _represented(Kind.EXISTENTIAL_METATYPE),
    "P": _constrained_existential,
    "p": type_of_type(Kind.EXISTENTIAL_METATYPE),
    "c": _with_class,
    "l": lambda machine: wrapped(Kind.PROTOCOL_LIST_WITH_ANY_OBJECT, _protocols(machine)),
    "x": _box(generic=False),
    "X": _box(generic=True),
    "Y": declared_type(Kind.OTHER_NOMINAL),
    "Z": _anonymous_context,
    "e": fixed(wrapped(Kind.ERROR_TYPE, [])),
    "S": _sugared,
}


def archetype(machine: Machine) -> Node:
    """``Q``: a type that stands for others."""
    return machine.choice(_ARCHETYPES)(machine)


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


def _numbered_opaque_return_type(machine: Machine) -> Node:
    machine.index()
    return wrapped(Kind.OPAQUE_RETURN_TYPE, [])


def _pack_expansion(machine: Machine) -> Node:
    count, pattern = machine.need(Kind.TYPE), machine.need(Kind.TYPE)
    return wrapped(Kind.PACK_EXPANSION, [pattern, count], "repeat {0}")


def _pack_element(machine: Machine) -> Node:
    pack = machine.need(Kind.TYPE)
    return wrapped(Kind.PACK_EXPANSION, [pack], f"/* level: {machine.index()} */ each {{0}}")


def _lowered_pack(machine: Machine) -> Node:
    c = machine.character()
    if c not in "di":
        raise NotUnderstoodError
    return wrapped(Kind.PACK, machine.types(), "@direct " if c == "d" else "@indirect ")


_ARCHETYPES: dict[str, Operator] = {
    "a": _associated_type,
    "O": _opaque_return_type_of,
    "o": _opaque_type,
    "r": fixed(wrapped(Kind.OPAQUE_RETURN_TYPE, [])),
    "R": _numbered_opaque_return_type,
    "x": lambda machine: member(machine, None),
    "X": lambda machine: member_path(machine, None),
    "y": lambda machine: member(machine, generic_parameter(machine)),
    "Y": lambda machine: member_path(machine, generic_parameter(machine)),
    "z": lambda machine: member(machine, FIRST_PARAMETER),
    "Z": lambda machine: member_path(machine, FIRST_PARAMETER),
    "p": _pack_expansion,
    "e": _pack_element,
    "P": lambda machine: wrapped(Kind.PACK, machine.types()),
    "S": _lowered_pack,
}
