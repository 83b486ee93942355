"""Names of Swift 3 and earlier (``docs/ABI/OldMangling.rst`` of the Swift project).

Functions and variables in names of Swift 3 and earlier (OldMangling.rst, "Entities").

Specialised functions in names of Swift 3 and earlier (OldMangling.rst, "Specializations").
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.entities import ACCESSORS
from machtrace.demangler.swift.globals import described_value_witness
from machtrace.demangler.swift.identifiers import STANDARD_LIBRARY
from machtrace.demangler.swift.machine import END, by_style, phrase
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.old.types import OldTypes
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
from machtrace.demangler.swift.thunks import reabstraction

_KINDS = {"F": Kind.FUNCTION, "v": Kind.VARIABLE, "i": Kind.SUBSCRIPT}
_ENTITY_STARTS = frozenset("FIvPsZCVO")
_DEINITIALIZERS = {
    "d": "deinit",
    "e": "__ivar_initializer",
    "E": "__ivar_destroyer",
}
_DEALLOCATORS = {
    "D": "__deallocating_deinit",
    "Z": "__isolated_deallocating_deinit",
}
_OLD_ACCESSORS = {letters: name for letters, name in ACCESSORS.items() if letters[0] not in "xyizb"}
_OLD_ACCESSORS |= {"ap": "nativePinningMutableAddressor"}
_SUBSCRIPT = "subscript"


class OldEntities(OldTypes):
    """Functions and variables, with their contexts."""

    __slots__ = ()

    def context(self) -> Node:
        """A module, another entity, a type, or an extension."""
        self.enter()
        node = self._context()
        self.leave()
        return node

    def _context(self) -> Node:
        if self.skip("E"):
            module = self.module()
            return Node(Kind.EXTENSION, [module, self.context()])
        if self.skip("e"):
            module, signature = self.module(), self.generic_signature()
            return Node(Kind.EXTENSION, [module, self.context(), signature])
        if self.skip("S"):
            return self.substitution()
        if self.skip("s"):
            return Node(Kind.MODULE, text=STANDARD_LIBRARY)
        if self.skip("G"):
            return self.bound_generic()
        return self.entity() if self.peek() in _ENTITY_STARTS else self.module()

    def entity(self) -> Node:
        """A function, a variable or a part of one; or a type."""
        self.enter()
        is_static = self.skip("Z")
        c = self.peek()
        if c == "I":
            self.at += 1
            node = self._initializer(self.context())
        elif c in _KINDS:
            self.at += 1
            node = self._member(_KINDS[c], self.context())
        else:
            node = self.nominal()
            is_static = False
        self.leave()
        return Node(Kind.STATIC, [node]) if is_static else node

    def _initializer(self, context: Node) -> Node:
        """``I``: the default value of a variable or an argument."""
        if node := self._part(context):
            return node
        c = self.character()
        if c == "A":
            return Node(Kind.DEFAULT_ARGUMENT, [context], index=self.index())
        if c == "i":
            return Node(Kind.INITIALIZER, [context], "variable initialization expression")
        raise NotUnderstoodError

    def _member(self, kind: Kind, context: Node) -> Node:
        if node := self._part(context):
            return node
        name = self.declaration_name()
        if kind is Kind.SUBSCRIPT:
            return Node(kind, [context, self.type_()])
        return Node(kind, [context, name, self.type_()])

    def _part(self, context: Node) -> Node | None:
        """Initialisers, deinitialisers, closures and accessors, which have letters for names."""
        c = self.peek()
        if name := _DEINITIALIZERS.get(c):
            self.at += 1
            return Node(Kind.DEINITIALIZER, [context], name)
        if name := _DEALLOCATORS.get(c):
            self.at += 1
            return Node(
                Kind.DEINITIALIZER, [context], name if context.kind is Kind.CLASS else "deinit"
            )
        if c in "Cc":
            self.at += 1
            kind = Kind.ALLOCATOR if c == "C" else Kind.CONSTRUCTOR
            return Node(kind, [context, self.type_()])
        if c in "Uu":
            self.at += 1
            number = self.index()
            kind = Kind.EXPLICIT_CLOSURE if c == "U" else Kind.IMPLICIT_CLOSURE
            return Node(kind, [context, self.type_()], index=number)
        return self._accessor(context)

    def _accessor(self, context: Node) -> Node | None:
        for length in (1, 2):
            if name := _OLD_ACCESSORS.get(self.text[self.at : self.at + length]):
                self.at += length
                return Node(Kind.ACCESSOR, [self._storage(context)], name)
        return None

    def _storage(self, context: Node) -> Node:
        """The variable of an accessor, or the subscript, which has its own name for a name."""
        name = self.declaration_name()
        type_ = self.type_()
        private = name.kind is Kind.PRIVATE_NAME
        plain = name.children[0] if private else name
        if plain.kind is not Kind.IDENTIFIER or plain.text != _SUBSCRIPT:
            return Node(Kind.VARIABLE, [context, name, type_])
        rest = [Node(Kind.PRIVATE_NAME, (), name.text)] if private else []
        return Node(Kind.SUBSCRIPT, [context, type_, *rest])


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
        NotUnderstoodError: the name contains an unknown operator.
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
