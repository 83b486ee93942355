"""Types of SIL functions in names of Swift 3 and earlier (OldMangling.rst, "Types")."""

from __future__ import annotations

from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.old.generics import OldGenerics

_CALLEES = {
    "t": "@convention(thin)",
    "d": "@callee_unowned",
    "g": "@callee_guaranteed",
    "o": "@callee_owned",
}
_CONVENTIONS = {
    "b": "block",
    "c": "c",
    "m": "method",
    "O": "objc_method",
    "w": "witness_method",
}
_PARAMETERS = {
    "d": "@unowned {0}",
    "g": "@guaranteed {0}",
    "e": "@deallocating {0}",
    "i": "@in {0}",
    "l": "@inout {0}",
    "o": "@owned {0}",
}
_RESULTS = {
    "a": "@autoreleased {0}",
    "d": "@unowned {0}",
    "D": "@unowned_inner_pointer {0}",
    "i": "@out {0}",
    "o": "@owned {0}",
}


class OldImplFunctions(OldGenerics):
    """Function types with conventions for everything."""

    __slots__ = ()

    def impl_function(self) -> Node:
        """``XF``: conventions, a generic signature, parameters, results."""
        callee = _CALLEES.get(self.character())
        if callee is None:
            raise NotUnderstoodError
        words = [callee]
        if self.skip("C"):
            convention = _CONVENTIONS.get(self.character())
            if convention is None:
                raise NotUnderstoodError
            words.append(f"@convention({convention})")
        if self.skip("h"):
            words.append("@Sendable")
        if self.skip("H"):
            words.append("@async")
        children = [Node(Kind.IMPL_ATTRIBUTE, (), word) for word in words]
        if self.skip("G") or self.skip("g"):
            children.append(Node(Kind.IMPL_ATTRIBUTE, [self.generic_signature()], "{0}"))
        self.expect("_")
        while not self.skip("_"):
            children.append(self._impl_part(Kind.IMPL_PARAMETER, _PARAMETERS, ""))
        while not self.skip("_"):
            prefix = "@error " if self.skip("z") else ""
            children.append(self._impl_part(Kind.IMPL_RESULT, _RESULTS, prefix))
        return Node(Kind.IMPL_FUNCTION, children)

    def _impl_part(self, kind: Kind, conventions: dict[str, str], prefix: str) -> Node:
        words = conventions.get(self.character())
        if words is None:
            raise NotUnderstoodError
        return Node(kind, [self.type_()], prefix + words)
