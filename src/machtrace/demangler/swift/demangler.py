"""Swift names for people (``docs/ABI/Mangling.rst`` of the Swift project).

Names of all versions: ``$s`` (Swift 5 and later), ``$S`` and ``_T0`` (Swift 4), ``$e`` (Embedded
Swift), ``@__swiftmacro_`` (files of macro expansions), and ``_T`` (Swift 3 and earlier, and what
Objective-C calls classes and protocols of Swift). Mach-O puts an underscore before some of them.

The operators by their first letter, and the loop that applies them (Mangling.rst).
"""

from __future__ import annotations

from machtrace.demangler.swift.conformances import (
    associated_conformance,
    concrete_conformance,
    conformance_in_protocol_module,
    conformance_in_type_module,
    inherited_conformance,
    opaque_conformance,
    pack_conformance,
    retroactive_conformance,
    root_conformance,
)
from machtrace.demangler.swift.entities import (
    function,
    function_entity,
    static,
    subscript,
    variable,
)
from machtrace.demangler.swift.functions import (
    annotation,
    function_type,
    impl_function_type,
    popped_labels,
)
from machtrace.demangler.swift.generics import (
    bound_generic_type,
    counted_generic_signature,
    first_parameter,
    generic_parameter,
    generic_requirement,
    generic_signature,
    generic_type,
)
from machtrace.demangler.swift.globals import (
    metadata,
    runtime_record,
    type_metadata,
    value_witness,
    witness,
)
from machtrace.demangler.swift.identifiers import (
    STANDARD_LIBRARY,
    identifier,
    local_identifier,
    operator_identifier,
    standard_substitution,
    substitution,
)
from machtrace.demangler.swift.machine import END, Machine, Operator, fixed
from machtrace.demangler.swift.nodes import (
    FAILURES,
    FUNCTION_ATTRIBUTES,
    NOMINALS,
    Kind,
    Node,
    NotUnderstoodError,
)
from machtrace.demangler.swift.old.parser import parse_old
from machtrace.demangler.swift.printing.printer import printed
from machtrace.demangler.swift.thunks import ACCESSIBLE_FUNCTION, thunk
from machtrace.demangler.swift.types import (
    archetype,
    builtin_type,
    declared_type,
    integer_type,
    modified,
    protocol_list,
    special_type,
    tuple_type,
    type_of_type,
)


def run(machine: Machine) -> None:
    """Read the name to its end: what it is about is then on the stack.

    Raises:
        NotUnderstoodError: an operator is not known, or its operands are not there.
        IndexError: the same, at the end of the stack or of the name.
    """
    text, stack, operators = machine.text, machine.stack, _OPERATORS
    while True:
        c = text[machine.at]
        operator = operators.get(c)
        if operator is not None:
            machine.at += 1
            stack.append(operator(machine))
        elif c == END:
            return
        else:
            stack.append(identifier(machine))
        machine.room -= 1
        if machine.room < 0:
            raise NotUnderstoodError


def _extension(machine: Machine) -> Node:
    """``E``: what is declared in an extension (Mangling.rst, "Entities")."""
    signature = machine.pop(Kind.GENERIC_SIGNATURE)
    module = machine.need_module()
    extended = machine.need_type()
    if extended.kind not in NOMINALS:
        raise NotUnderstoodError
    return Node(Kind.EXTENSION, [module, extended, *([signature] if signature else [])])


def _type_mangling(machine: Machine) -> Node:
    """``D``: a type by itself."""
    type_ = machine.need(Kind.TYPE)
    labels = popped_labels(machine, type_)
    return Node(Kind.TYPE_MANGLING, [labels, type_] if labels else [type_])


_CONFORMANCES: dict[str, Operator] = {
    "A": associated_conformance,
    "C": concrete_conformance,
    "D": root_conformance,
    "I": inherited_conformance,
    "O": opaque_conformance,
    "P": conformance_in_type_module,
    "p": conformance_in_protocol_module,
    "X": pack_conformance,
    "F": fixed(ACCESSIBLE_FUNCTION),
}


def _conformance(machine: Machine) -> Node:
    """``H``: conformances, and records for the runtime."""
    operator = _CONFORMANCES.get(machine.text[machine.at])
    if operator is None:
        return runtime_record(machine)
    machine.at += 1
    return operator(machine)


def _suffix(machine: Machine) -> Node:
    """``.``: the rest, which is not mangled."""
    start = machine.at - 1
    machine.at = len(machine.text) - 1
    return Node(Kind.SUFFIX, text=machine.text[start:-1])


_OPERATORS: dict[str, Operator] = {
    "A": substitution,
    "B": builtin_type,
    "C": declared_type(Kind.CLASS),
    "D": _type_mangling,
    "E": _extension,
    "F": function,
    "G": bound_generic_type,
    "H": _conformance,
    "I": impl_function_type,
    "K": fixed(Node(Kind.THROWS, (), " throws")),
    "L": local_identifier,
    "M": metadata,
    "N": type_metadata,
    "O": declared_type(Kind.ENUM),
    "P": declared_type(Kind.PROTOCOL),
    "Q": archetype,
    "R": generic_requirement,
    "S": standard_substitution,
    "T": thunk,
    "V": declared_type(Kind.STRUCTURE),
    "W": witness,
    "X": special_type,
    "Y": annotation,
    "Z": static,
    "a": declared_type(Kind.TYPE_ALIAS),
    "c": function_type(Kind.FUNCTION_TYPE),
    "d": fixed(Node(Kind.VARIADIC)),
    "f": function_entity,
    "g": retroactive_conformance,
    "h": modified("__shared "),
    "i": subscript,
    "l": generic_signature,
    "m": type_of_type(Kind.METATYPE),
    "n": modified("__owned "),
    "o": operator_identifier,
    "p": protocol_list,
    "q": generic_parameter,
    "r": counted_generic_signature,
    "s": fixed(Node(Kind.MODULE, text=STANDARD_LIBRARY)),
    "t": tuple_type,
    "u": generic_type,
    "v": variable,
    "w": value_witness,
    "x": first_parameter,
    "y": fixed(Node(Kind.EMPTY_LIST)),
    "z": modified("inout "),
    "_": fixed(Node(Kind.FIRST_ELEMENT)),
    ".": _suffix,
    "$": integer_type,
}


_PREFIXES = ("_T0", "$S", "_$S", "$s", "_$s", "$e", "_$e", "@__swiftmacro_")
_OLD_PREFIX = "_T"
_MAX_LENGTH = 1 << 15
"""Characters of the longest name that is parsed."""


def demangle_swift(name: str, *, simplified: bool = False) -> str | None:
    """Return the name as people write it, or None if it is not a Swift name that is understood.

    In full it is what ``swift-demangle`` prints, and in the simplified form what ``swift-demangle
    --simplified`` does. Raises nothing, whatever the name; takes time and memory in proportion to
    its length, with a limit.

    Args:
        name: the name of a symbol or of a class, or of a type (``_TtC4main3Foo``), with its prefix.
        simplified: without modules, types of arguments, and other things of less interest.
    """
    root = parse_swift(name)
    if root is None:
        return None
    try:
        return printed(root, _parsed, simplified=simplified) or None
    except FAILURES:
        return None


def parse_swift(name: str) -> Node | None:
    """The tree that a mangled name stands for, or None where it is not understood.

    The tree is not to be changed. Raises nothing, whatever the name.
    """
    try:
        return _parsed(name)
    except FAILURES:
        return None


def _parsed(name: str) -> Node:
    """The tree of a name.

    Raises:
        NotUnderstoodError: it is not a Swift name, or contains an unknown operator.
        IndexError: the same, at the end of the name.
    """
    if len(name) > _MAX_LENGTH:
        raise NotUnderstoodError
    if name.startswith("__"):
        name = name[1:]
    if not name.isascii():
        name = name.encode("utf-8", "surrogatepass").decode("latin-1")
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return _new(name, len(prefix))
    if name.startswith(_OLD_PREFIX):
        return parse_old(name)
    raise NotUnderstoodError


def _new(name: str, at: int) -> Node:
    machine = Machine(name, at, labels_in_types=name.startswith(_OLD_PREFIX))
    run(machine)
    suffix = machine.pop(Kind.SUFFIX)
    attributes = []
    while attribute := machine.pop_any(FUNCTION_ATTRIBUTES):
        attributes.append(attribute)
    root: list[Node] = []
    children = root
    for attribute in attributes:
        if attribute.kind is Kind.PARTIAL_APPLY:
            inner: list[Node] = []
            children.append(Node(Kind.PARTIAL_APPLY, inner, attribute.text))
            children = inner
        else:
            children.append(attribute)
    children += machine.stack
    if suffix:
        root.append(suffix)
    if not root:
        raise NotUnderstoodError
    return Node(Kind.GLOBAL, root)
