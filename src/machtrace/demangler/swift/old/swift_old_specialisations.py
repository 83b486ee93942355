"""Specialised functions in names of Swift 3 and earlier (OldMangling.rst, "Specializations")."""

from __future__ import annotations

from machtrace.demangler.swift.machine import by_style, phrase
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.old.swift_old_entities import OldEntities
from machtrace.demangler.swift.specialisations import (
    DEAD,
    EXPLODED,
    IN_ANOTHER_WAY,
    SERIALISED,
    TO_GUARANTEED,
    TO_OWNED,
    argument_items,
    closure_change,
    constant_change,
    string_change,
)

_GENERIC = {
    "g": "generic specialization",
    "r": "generic not re-abstracted specialization",
}
_FUNCTION = "function signature specialization"
_OPTIONS = {"d": DEAD, "g": TO_GUARANTEED, "o": TO_OWNED, "s": EXPLODED}
_MOVED = {
    "i_": IN_ANOTHER_WAY["i"],
    "k_": IN_ANOTHER_WAY["s"],
    "r_": IN_ANOTHER_WAY["r"],
}
_ENCODINGS = {"0": "u8", "1": "u16"}


def specialisation(reader: OldEntities) -> Node:
    """After ``TS``: what the function whose name follows was made for."""
    c = reader.character()
    items = [SERIALISED] if reader.skip("q") else []
    reader.character()
    if words := _GENERIC.get(c):
        while not reader.skip("_"):
            items.append(_replacement(reader))
        return Node(Kind.SPECIALISATION, items, words)
    if c != "f":
        raise NotUnderstoodError
    arguments = []
    while not reader.skip("_"):
        arguments.append(_change(reader))
    return Node(Kind.SPECIALISATION, items + argument_items(arguments), _FUNCTION)


def _replacement(reader: OldEntities) -> Node:
    """A type in place of a generic parameter, with its conformances."""
    type_ = reader.type_()
    conformances = []
    while not reader.skip("_"):
        conforming, protocol = reader.type_(), reader.protocol()
        full = phrase("{0} : {1} in {2}", conforming, protocol, reader.context())
        conformances.append(by_style(full, conforming))
    if not conformances:
        return type_
    return phrase("{0} with {1}", type_, Node(Kind.LIST, conformances, " and "))


def _change(reader: OldEntities) -> list[Node]:
    if reader.skip("n_"):
        return []
    if reader.skip("cp"):
        return [_constant(reader)]
    if reader.skip("cl"):
        return [_closure(reader)]
    if words := _MOVED.get(reader.text[reader.at : reader.at + 2]):
        reader.at += 2
        return [phrase(words)]
    words_ = [word for letter, word in _OPTIONS.items() if reader.skip(letter)]
    reader.expect("_")
    if not words_:
        raise NotUnderstoodError
    return [phrase(" and ".join(words_))]


def _constant(reader: OldEntities) -> Node:
    if reader.skip("fr"):
        node = constant_change("Function", reader.identifier().text)
    elif reader.skip("g"):
        node = constant_change("Global", reader.identifier().text)
    elif reader.skip("i"):
        node = constant_change("Integer", _until_underscore(reader))
    elif reader.skip("fl"):
        node = constant_change("Float", _until_underscore(reader))
    else:
        node = _string(reader)
    reader.expect("_")
    return node


def _string(reader: OldEntities) -> Node:
    reader.expect("se")
    encoding = _ENCODINGS.get(reader.character())
    if encoding is None:
        raise NotUnderstoodError
    reader.expect("v")
    return string_change(encoding, reader.identifier().text)


def _until_underscore(reader: OldEntities) -> str:
    end = reader.text.find("_", reader.at)
    if end < 0:
        raise NotUnderstoodError
    found = reader.text[reader.at : end]
    reader.at = end
    return found


def _closure(reader: OldEntities) -> Node:
    name = reader.identifier().text
    types = []
    while not reader.skip("_"):
        types.append(reader.type_())
    return closure_change(name, types)
