"""Names of Swift 3 and earlier (``docs/ABI/OldMangling.rst`` of the Swift project)."""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.swift_cursor import END
from machtrace.demangler.swift.globals import described_value_witness
from machtrace.demangler.swift.machine import by_style, phrase
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.old.swift_old_entities import OldEntities
from machtrace.demangler.swift.old.swift_old_specialisations import specialisation
from machtrace.demangler.swift.thunks import reabstraction

_ATTRIBUTES = {
    "To": "@objc ",
    "TO": "@nonobjc ",
    "TD": "dynamic ",
    "Td": "super ",
    "TV": "override ",
}


def parse_old(name: str) -> Node:
    """The tree of a name that begins with ``_T``.

    Raises:
        NotUnderstoodError: the name says what is not known.
        IndexError: the same, at the end of the name.
    """
    reader = OldEntities(name, 2)
    children = []
    if reader.skip("TS"):
        children.append(specialisation(reader))
        while reader.skip("_TTS"):
            reader.substitutions.clear()
            children.append(specialisation(reader))
        reader.substitutions.clear()
        reader.expect("_T")
    elif attribute := _ATTRIBUTES.get(name[2:4]):
        reader.at += 2
        children.append(Node(Kind.ATTRIBUTE, (), attribute))
    children.append(_global(reader))
    if reader.peek() != END:
        children.append(Node(Kind.SUFFIX, text=reader.text[reader.at : -1]))
    return Node(Kind.GLOBAL, children)


def _global(reader: OldEntities) -> Node:
    operator = _GLOBALS.get(reader.peek())
    if operator is None:
        return reader.entity()
    reader.at += 1
    return operator(reader)


_METADATA = {
    "P": "generic type metadata pattern for {0}",
    "a": "type metadata accessor for {0}",
    "L": "lazy cache variable for type metadata for {0}",
    "m": "metaclass for {0}",
    "n": "nominal type descriptor for {0}",
    "f": "full type metadata for {0}",
}


def _metadata(reader: OldEntities) -> Node:
    if reader.skip("p"):
        return phrase("protocol descriptor for {0}", reader.protocol())
    if words := _METADATA.get(reader.peek()):
        reader.at += 1
        return phrase(words, reader.type_())
    return phrase("type metadata for {0}", reader.type_())


def _partial_application(reader: OldEntities) -> Node:
    """``PA``: of the function whose name follows, if one does."""
    if not reader.skip("A"):
        reader.at -= 1
        return reader.entity()
    objective_c = reader.skip("o")
    words = "partial apply ObjC forwarder" if objective_c else "partial apply forwarder"
    children = [_inner(reader)] if reader.skip("__T") else []
    return Node(Kind.PARTIAL_APPLY, children, words)


def _inner(reader: OldEntities) -> Node:
    reader.enter()
    node = _global(reader)
    reader.leave()
    return node


def _type_mangling(reader: OldEntities) -> Node:
    return Node(Kind.TYPE_MANGLING, [reader.type_()])


def _value_witness(reader: OldEntities) -> Node:
    return described_value_witness(reader.character() + reader.character(), reader.type_)


_TABLES = {
    "P": "protocol witness table for {0}",
    "G": "generic protocol witness table for {0}",
    "I": "instantiation function for generic protocol witness table for {0}",
    "a": "protocol witness table accessor for {0}",
}
_LAZY_TABLES = {
    "l": "lazy protocol witness table accessor for type {0} and conformance {1}",
    "L": "lazy protocol witness table cache variable for type {0} and conformance {1}",
}


def _conformance(reader: OldEntities) -> Node:
    type_, protocol = reader.type_(), reader.protocol()
    return by_style(phrase("{0} : {1} in {2}", type_, protocol, reader.context()), type_)


def _witness(reader: OldEntities) -> Node:
    c = reader.character()
    if words := _TABLES.get(c):
        return phrase(words, _conformance(reader))
    if words := _LAZY_TABLES.get(c):
        type_ = reader.type_()
        return phrase(words, type_, _conformance(reader))
    if c == "V":
        return phrase("value witness table for {0}", reader.type_())
    if c == "v":
        directness = {"d": "direct", "i": "indirect"}.get(reader.character())
        if directness:
            return phrase(f"{directness} field offset for {{0}}", reader.entity())
    if c in "tT":
        return _associated(reader, c)
    raise NotUnderstoodError


def _associated(reader: OldEntities, c: str) -> Node:
    conformance = _conformance(reader)
    name = reader.declaration_name()
    if c == "t":
        return phrase("associated type metadata accessor for {0} in {1}", name, conformance)
    words = "associated type witness table accessor for {0} : {1} in {2}"
    return phrase(words, name, reader.protocol(), conformance)


def _thunk(reader: OldEntities) -> Node:
    c = reader.character()
    if c == "W":
        conformance = _conformance(reader)
        words = "protocol witness for {0} in conformance {1}"
        return phrase(words, reader.entity(), conformance)
    if c not in "Rr":
        raise NotUnderstoodError
    signature = reader.generic_signature() if reader.skip("G") else None
    first, second = reader.type_(), reader.type_()
    words = "reabstraction thunk helper " if c == "R" else "reabstraction thunk "
    return reabstraction(words, signature, first, second)


_GLOBALS: dict[str, Callable[[OldEntities], Node]] = {
    "M": _metadata,
    "P": _partial_application,
    "t": _type_mangling,
    "w": _value_witness,
    "W": _witness,
    "T": _thunk,
}
