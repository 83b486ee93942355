"""Metadata, descriptors and witnesses (Mangling.rst, "Globals")."""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.conformances import popped_conformance
from machtrace.demangler.swift.differentiation import differentiability_witness
from machtrace.demangler.swift.generics import associated_path, popped_protocol
from machtrace.demangler.swift.machine import (
    Machine,
    Operator,
    by_style,
    last_type,
    phrase,
    phrases,
)
from machtrace.demangler.swift.nodes import (
    DECLARATION_NAMES,
    ENTITIES,
    NOMINALS,
    Kind,
    Node,
    NotUnderstoodError,
)

_OF_TYPE = {
    "a": "type metadata accessor for {0}",
    "b": "canonical specialized generic type metadata accessor for {0}",
    "B": "reflection metadata builtin descriptor {0}",
    "D": "demangling cache variable for type metadata for {0}",
    "d": "demangling cache variable for type metadata for {0}",
    "f": "full type metadata for {0}",
    "F": "reflection metadata field descriptor {0}",
    "i": "type metadata instantiation function for {0}",
    "I": "type metadata instantiation cache for {0}",
    "l": "type metadata singleton initialization cache for {0}",
    "L": "lazy cache variable for type metadata for {0}",
    "m": "metaclass for {0}",
    "M": "specialized generic metaclass for {0}",
    "n": "nominal type descriptor for {0}",
    "N": "noncanonical specialized generic type metadata for {0}",
    "o": "class metadata base offset for {0}",
    "P": "generic type metadata pattern for {0}",
    "r": "type metadata completion function for {0}",
    "R": "mangled name ref for type metadata for {0}",
    "s": "ObjC resilient class stub for {0}",
    "t": "full ObjC resilient class stub for {0}",
    "u": "method lookup function for {0}",
    "U": "ObjC metadata update function for {0}",
    "z": "flag for loading of canonical specialized generic type metadata for {0}",
}
_OF_ANYTHING = {
    "g": "opaque type descriptor accessor for {0}",
    "h": "opaque type descriptor accessor impl for {0}",
    "j": "opaque type descriptor accessor key for {0}",
    "J": "cache variable for noncanonical specialized generic type metadata for {0}",
    "k": "opaque type descriptor accessor var for {0}",
    "K": "metadata instantiation cache for {0}",
    "q": "uniquable {0}",
    "Q": "opaque type descriptor for {0}",
}
_OF_CONFORMANCE = {
    "A": "reflection metadata associated type descriptor {0}",
    "c": "protocol conformance descriptor for {0}",
}
_OF_PROTOCOL = {
    "p": "protocol descriptor for {0}",
    "S": "protocol self-conformance descriptor for {0}",
}


def type_metadata(machine: Machine) -> Node:
    """``N``: the metadata of a type."""
    return phrase("type metadata for {0}", machine.need(Kind.TYPE))


def metadata(machine: Machine) -> Node:
    """``M``: metadata, descriptors of reflection, and what makes them."""
    return machine.choice(_METADATA)(machine)


def _last_entity(machine: Machine) -> Node:
    return machine.need_any(ENTITIES)


def _last(machine: Machine) -> Node:
    return machine.stack.pop()


def _superclass_descriptor(machine: Machine) -> Node:
    nominal = machine.need(Kind.TYPE)
    if nominal.children[0].kind not in NOMINALS:
        raise NotUnderstoodError
    return phrase("reflection metadata superclass descriptor {0}", nominal)


def _context_descriptor(machine: Machine) -> Node:
    c = machine.character()
    if c == "E":
        return phrase("extension descriptor {0}", machine.context())
    if c == "M":
        return phrase("module descriptor {0}", machine.need_module())
    if c == "Y":
        machine.stack.pop()
        return phrase("anonymous descriptor {0}", machine.context())
    if c == "X":
        return phrase("anonymous descriptor {0}", machine.context())
    if c == "A":
        path = associated_path(machine)
        words = "generic parameter reference for associated type {0}{1}"
        return phrase(words, machine.need(Kind.TYPE), path)
    raise NotUnderstoodError


_METADATA: dict[str, Operator] = {
    **phrases(_OF_TYPE, last_type),
    **phrases(_OF_ANYTHING, _last),
    **phrases(_OF_CONFORMANCE, popped_conformance),
    **phrases(_OF_PROTOCOL, popped_protocol),
    **phrases({"V": "property descriptor for {0}"}, _last_entity),
    "C": _superclass_descriptor,
    "X": _context_descriptor,
}


_TABLES = {
    "P": "protocol witness table for {0}",
    "p": "protocol witness table pattern for {0}",
    "G": "generic protocol witness table for {0}",
    "I": "instantiation function for generic protocol witness table for {0}",
    "r": "resilient protocol witness table for {0}",
    "a": "protocol witness table accessor for {0}",
}


def witness(machine: Machine) -> Node:
    """``W``: witness tables and what is in them, outlined operations, once-only functions."""
    return machine.choice(_WITNESSES)(machine)


def _lazy_table(word: str) -> Operator:
    words = f"lazy protocol witness table {word} for type {{0}} and conformance {{1}}"

    def operator(machine: Machine) -> Node:
        conformance = popped_conformance(machine)
        return phrase(words, machine.need(Kind.TYPE), conformance)

    return operator


def _field_offset(machine: Machine) -> Node:
    directness = machine.choice({"d": "direct", "i": "indirect"})
    return phrase(f"{directness} field offset for {{0}}", machine.need_any(ENTITIES))


def _associated_metadata(machine: Machine) -> Node:
    name = machine.need_any(DECLARATION_NAMES)
    conformance = popped_conformance(machine)
    return phrase("associated type metadata accessor for {0} in {1}", name, conformance)


def _associated_table(machine: Machine) -> Node:
    protocol = machine.need(Kind.TYPE)
    path = associated_path(machine)
    words = "associated type witness table accessor for {0} : {1} in {2}"
    return phrase(words, path, protocol, popped_conformance(machine))


def _base_table(machine: Machine) -> Node:
    protocol = machine.need(Kind.TYPE)
    conformance = popped_conformance(machine)
    return phrase("base witness table accessor for {0} in {1}", protocol, conformance)


_OUTLINED = {
    "y": "outlined copy of {0}",
    "e": "outlined consume of {0}",
    "r": "outlined retain of {0}",
    "s": "outlined release of {0}",
    "b": "outlined init with take of {0}",
    "B": "outlined init with take of {0}",
    "c": "outlined init with copy of {0}",
    "C": "outlined init with copy of {0}",
    "d": "outlined assign with take of {0}",
    "D": "outlined assign with take of {0}",
    "f": "outlined assign with copy of {0}",
    "F": "outlined assign with copy of {0}",
    "h": "outlined destroy of {0}",
    "H": "outlined destroy of {0}",
    "g": "outlined enum get tag of {0}",
    "i": "outlined enum tag store of {0}",
    "j": "outlined enum project data for load of {0}",
}
_WITH_SIGNATURE = frozenset("ye")
_OF_CASE = frozenset("ij")


def _outlined(machine: Machine) -> Node:
    """``WO``: operations on values that are functions of their own to make code smaller."""
    c = machine.character()
    words = _OUTLINED.get(c)
    if words is None:
        raise NotUnderstoodError
    if c in _OF_CASE:
        machine.index()
    signature = machine.pop(Kind.GENERIC_SIGNATURE)
    type_ = machine.need(Kind.TYPE)
    if signature and c in _WITH_SIGNATURE:
        return phrase(words + "{1}", type_, signature)
    return phrase(words, type_)


def _once(words: str) -> Operator:
    def operator(machine: Machine) -> Node:
        names = []
        while machine.first_element():
            names.append(machine.need_any(DECLARATION_NAMES))
        names.reverse()
        machine.context()
        declarations = Node(Kind.LIST, names, ", ")
        return phrase(words + ("{0}" if len(names) == 1 else "({0})"), declarations)

    return operator


_WITNESSES: dict[str, Operator] = {
    **phrases(_TABLES, popped_conformance),
    **phrases({"C": "enum case for {0}"}, _last_entity),
    **phrases({"V": "value witness table for {0}"}, last_type),
    **phrases({"S": "protocol self-conformance witness table for {0}"}, popped_protocol),
    "l": _lazy_table("accessor"),
    "L": _lazy_table("cache variable"),
    "v": _field_offset,
    "t": _associated_metadata,
    "T": _associated_table,
    "b": _base_table,
    "O": _outlined,
    "Z": _once("one-time initialization function for "),
    "z": _once("one-time initialization token for "),
    "J": differentiability_witness,
}

VALUE_WITNESSES = {
    "al": "allocateBuffer",
    "ca": "assignWithCopy",
    "ta": "assignWithTake",
    "de": "deallocateBuffer",
    "xx": "destroy",
    "XX": "destroyBuffer",
    "Xx": "destroyArray",
    "CP": "initializeBufferWithCopyOfBuffer",
    "Cp": "initializeBufferWithCopy",
    "cp": "initializeWithCopy",
    "Tk": "initializeBufferWithTake",
    "tk": "initializeWithTake",
    "pr": "projectBuffer",
    "TK": "initializeBufferWithTakeOfBuffer",
    "Cc": "initializeArrayWithCopy",
    "Tt": "initializeArrayWithTakeFrontToBack",
    "tT": "initializeArrayWithTakeBackToFront",
    "xs": "storeExtraInhabitant",
    "xg": "getExtraInhabitantIndex",
    "ug": "getEnumTag",
    "up": "destructiveProjectEnumData",
    "ui": "destructiveInjectEnumTag",
    "et": "getEnumTagSinglePayload",
    "st": "storeEnumTagSinglePayload",
}
"""By their letters (``VALUE-WITNESS-KIND``)."""


def value_witness(machine: Machine) -> Node:
    """``w``: a function of a value witness table."""
    return described_value_witness(
        machine.character() + machine.character(), lambda: machine.need(Kind.TYPE)
    )


def described_value_witness(letters: str, type_: Callable[[], Node]) -> Node:
    """The value witness of these letters, of the type that ``type_`` then reads."""
    name = VALUE_WITNESSES.get(letters)
    if name is None:
        raise NotUnderstoodError
    of = type_()
    return by_style(phrase(f"{name} value witness for {{0}}", of), phrase(f"{name} for {{0}}", of))


_RECORDS: dict[str, Operator] = {
    **phrases({"c": "protocol conformance descriptor runtime record for {0}"}, popped_conformance),
    **phrases({"n": "nominal type descriptor runtime record for {0}"}, last_type),
    **phrases({"o": "opaque type descriptor runtime record for {0}"}, _last),
    **phrases({"r": "protocol descriptor runtime record for {0}"}, popped_protocol),
}


def runtime_record(machine: Machine) -> Node:
    """``Hc``, ``Hn``, ``Ho``, ``Hr``: records of an image's contents for the runtime."""
    return machine.choice(_RECORDS)(machine)
