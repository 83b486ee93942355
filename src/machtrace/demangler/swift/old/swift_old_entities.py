"""Functions and variables in names of Swift 3 and earlier (OldMangling.rst, "Entities")."""

from __future__ import annotations

from machtrace.demangler.swift.entities import ACCESSORS
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.old.types import OldTypes
from machtrace.demangler.swift.swift_standard_types import STANDARD_LIBRARY

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
    """What functions and variables are in, and what they are."""

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
        """``I``: what a variable or an argument is without being told."""
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
