"""Generics in names of Swift 3 and earlier (OldMangling.rst, "Generics")."""

from __future__ import annotations

from machtrace.demangler.swift.generics import FIRST_PARAMETER, parameter
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.old.cursor import OldCursor

_LAYOUTS = {
    "U": "_UnknownLayout",
    "R": "_RefCountedObject",
    "N": "_NativeRefCountedObject",
    "T": "_Trivial",
    "B": "_BridgeObject",
}
_SIZED_LAYOUTS = {"e": "_Trivial", "m": "_TrivialAtMost", "S": "_TrivialStride"}
_ALIGNED_LAYOUTS = {"E": "_Trivial", "M": "_TrivialAtMost"}
_DIGITS = frozenset("0123456789")


class OldGenerics(OldCursor):
    """Generic parameters, signatures and requirements."""

    __slots__ = ()

    def generic_parameter(self) -> Node:
        """A generic parameter by depth and number, wrapped."""
        if self.skip("d"):
            depth = self.index() + 1
            return Node(Kind.TYPE, [parameter(depth, self.index())])
        if self.skip("x"):
            return FIRST_PARAMETER
        return Node(Kind.TYPE, [parameter(0, self.index() + 1)])

    def member(self, base: Node) -> Node:
        """An associated type of ``base``, wrapped."""
        if self.skip("S"):
            name = self.substitution()
            if name.kind is not Kind.PHRASE:
                raise NotUnderstoodError
        else:
            protocols = [self.protocol()] if self.skip("P") else []
            words = "{0}.{1}" if protocols else "{0}"
            name = self.substitutable(Node(Kind.PHRASE, [*protocols, self.identifier()], words))
        return Node(Kind.TYPE, [Node(Kind.DEPENDENT_MEMBER, [base, name])])

    def parameter_member(self) -> Node:
        """``w``: an associated type of a generic parameter, wrapped."""
        return self.member(self.generic_parameter())

    def parameter_member_path(self) -> Node:
        """``W``: an associated type of an associated type, and so on, wrapped."""
        base = self.generic_parameter()
        while not self.skip("_"):
            base = self.member(base)
        return base

    def dependent_type(self) -> Node:
        """``q``: a generic parameter, or an associated type of any type; wrapped."""
        if self.peek() in "d_" or self.peek() in _DIGITS:
            return self.generic_parameter()
        return self.member(self.type_())

    def generic_signature(self) -> Node:
        """Counts of parameters, and requirements (``R`` … ``r``)."""
        children = []
        while self.peek() not in "Rr":
            count = 0 if self.skip("z") else self.index() + 1
            children.append(Node(Kind.PARAMETER_COUNT, index=count))
        if not children:
            children.append(Node(Kind.PARAMETER_COUNT, index=1))
        if not self.skip("r"):
            self.expect("R")
            while not self.skip("r"):
                children.append(self._requirement())
        return Node(Kind.GENERIC_SIGNATURE, children)

    def _requirement(self) -> Node:
        if self.skip("w"):
            subject = self.parameter_member()
        elif self.skip("W"):
            subject = self.parameter_member_path()
        else:
            subject = self.generic_parameter()
        if self.skip("z"):
            return Node(Kind.REQUIREMENT, [subject, self.type_()], "{0} == {1}")
        if self.skip("l"):
            return Node(Kind.REQUIREMENT, [subject], f"{{0}}: {self._layout()}")
        return Node(Kind.REQUIREMENT, [subject, self._constraint()], "{0}: {1}")

    def _constraint(self) -> Node:
        """A superclass or a protocol, of which either may be known by reference."""
        if self.peek() == "C":
            return self.type_()
        if not self.skip("S"):
            return self.protocol()
        constraint = self.substitution()
        if constraint.kind is Kind.MODULE:
            constraint = self.declaration_in(Kind.PROTOCOL, constraint)
        if constraint.kind not in {Kind.PROTOCOL, Kind.CLASS}:
            raise NotUnderstoodError
        return Node(Kind.TYPE, [constraint])

    def _layout(self) -> str:
        c = self.character()
        if name := _LAYOUTS.get(c):
            return name
        if name := _SIZED_LAYOUTS.get(c):
            return f"{name}({self.natural()})"
        if name := _ALIGNED_LAYOUTS.get(c):
            size = self.natural()
            self.expect("_")
            return f"{name}({size}, {self.natural()})"
        raise NotUnderstoodError
