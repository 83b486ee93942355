"""Types in names of Swift 3 and earlier (OldMangling.rst, "Types").

Types of SIL functions in names of Swift 3 and earlier (OldMangling.rst, "Types").
"""

from __future__ import annotations

from machtrace.demangler.swift.functions import DIFFERENTIABILITY
from machtrace.demangler.swift.generics import FIRST_PARAMETER
from machtrace.demangler.swift.identifiers import STANDARD_LIBRARY
from machtrace.demangler.swift.machine import phrase
from machtrace.demangler.swift.nodes import NOMINALS, Kind, Node, NotUnderstoodError
from machtrace.demangler.swift.old.cursor import MAX_DEPTH
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


_BUILTINS = {
    "b": "Builtin.BridgeObject",
    "B": "Builtin.UnsafeValueBuffer",
    "O": "Builtin.UnknownObject",
    "o": "Builtin.NativeObject",
    "p": "Builtin.RawPointer",
    "t": "Builtin.SILToken",
    "w": "Builtin.Word",
}
_SIZED_BUILTINS = {"f": "FPIEEE", "i": "Int"}
_FUNCTIONS = {
    "b": Kind.BLOCK_TYPE,
    "c": Kind.C_FUNCTION_TYPE,
    "F": Kind.FUNCTION_TYPE,
    "f": Kind.UNCURRIED_TYPE,
    "K": Kind.AUTOCLOSURE_TYPE,
    "Xf": Kind.THIN_TYPE,
}
_DECLARED = {
    "C": Kind.CLASS,
    "V": Kind.STRUCTURE,
    "O": Kind.ENUM,
    "P": Kind.PROTOCOL,
    "a": Kind.TYPE_ALIAS,
}
_MODIFIED = {
    "R": "inout ",
    "k": "@noDerivative ",
    "Xo": "unowned ",
    "Xu": "unowned(unsafe) ",
    "Xw": "weak ",
}
_REPRESENTATIONS = {"t": "@thin ", "T": "@thick ", "o": "@objc_metatype "}
_WITHOUT_ARGUMENTS = frozenset({Kind.MODULE, Kind.FUNCTION, Kind.EXTENSION})
_LABEL_STARTS = frozenset("0123456789o")


class OldTypes(OldImplFunctions):
    """All types."""

    __slots__ = ()

    def type_(self) -> Node:
        """A type, wrapped."""
        self.enter()
        letters = self.character()
        if letters == "X":
            letters += self.character()
        node = self._type(letters)
        self.leave()
        return node if node.kind is Kind.TYPE else Node(Kind.TYPE, [node])

    def _type(self, letters: str) -> Node:
        """The type that begins with these letters; may be wrapped."""
        if kind := _FUNCTIONS.get(letters):
            return self._function(kind)
        if word := _MODIFIED.get(letters):
            return Node(Kind.MODIFIED, [self.type_()], word)
        if letters != "P" and (kind := _DECLARED.get(letters)):
            return self.declaration(kind)
        reader = _READERS.get(letters)
        if reader is None:
            raise NotUnderstoodError
        return reader(self)

    def _builtin(self) -> Node:
        c = self.character()
        if name := _BUILTINS.get(c):
            return Node(Kind.BUILTIN, (), name)
        if c in _SIZED_BUILTINS:
            return Node(Kind.BUILTIN, (), "Builtin." + self._sized(c))
        if c != "v":
            raise NotUnderstoodError
        count = self.natural()
        self.expect("B")
        element = self.character()
        name = "RawPointer" if element == "p" else self._sized(element)
        return Node(Kind.BUILTIN, (), f"Builtin.Vec{count}x{name}")

    def _sized(self, c: str) -> str:
        name = _SIZED_BUILTINS.get(c)
        if name is None:
            raise NotUnderstoodError
        size = self.natural()
        self.expect("_")
        return f"{name}{size}"

    def _function(self, kind: Kind) -> Node:
        annotations = []
        if self.skip("z"):
            annotations.append(Node(Kind.THROWS, (), " throws"))
        if self.skip("y"):
            annotations.append(Node(Kind.SENDABLE, (), "@Sendable "))
        if self.skip("Z"):
            annotations.append(Node(Kind.ASYNC, (), " async"))
        if self.skip("D"):
            words = DIFFERENTIABILITY.get(self.character(), "")
            annotations.append(Node(Kind.DIFFERENTIABLE, (), f"@differentiable{words} "))
        if self.skip("Y"):
            annotations.append(Node(Kind.ISOLATION, [self.type_()], "@{0} "))
        arguments = Node(Kind.ARGUMENTS, [self.type_()])
        return Node(kind, [*annotations, arguments, Node(Kind.RESULT, [self.type_()])])

    def _error(self) -> Node:
        self.expect("RR")
        return Node(Kind.ERROR_TYPE)

    def nominal(self) -> Node:
        """A declared type in full, or by reference."""
        if self.skip("S"):
            return self.substitution()
        kind = _DECLARED.get(self.character())
        if kind is None or kind is Kind.TYPE_ALIAS:
            raise NotUnderstoodError
        return self.declaration(kind)

    def bound_generic(self) -> Node:
        """``G``: a generic type, and lists of arguments, those of the outermost type first."""
        nominal = self.nominal()
        path = [nominal]
        while path[-1].children[0].kind not in _WITHOUT_ARGUMENTS:
            path.append(path[-1].children[0])
            if len(path) > MAX_DEPTH:
                raise NotUnderstoodError
        bound = path[-1]
        for level in reversed(range(len(path))):
            node = path[level]
            if level < len(path) - 1:
                node = Node(node.kind, [bound, *node.children[1:]], node.text, node.index)
            bound = self._applied(node)
        return bound

    def _applied(self, node: Node) -> Node:
        arguments = []
        while not self.skip("_"):
            arguments.append(self.type_())
        if not arguments:
            return node
        if node.kind not in NOMINALS:
            raise NotUnderstoodError
        types = Node(Kind.TYPE_LIST, arguments)
        return Node(Kind.BOUND_GENERIC, [Node(Kind.TYPE, [node]), types])

    def _box_of_one(self) -> Node:
        return Node(Kind.SUGARED, [self.type_()], "@box {0}")

    def _box(self) -> Node:
        signature = self.generic_signature() if self.skip("G") else None
        fields = []
        while not self.skip("_"):
            word = {"m": "var {0}", "i": "let {0}"}.get(self.character())
            if word is None:
                raise NotUnderstoodError
            fields.append(phrase(word, self.type_()))
        rest = []
        if signature:
            arguments = []
            while not self.skip("_"):
                arguments.append(self.type_())
            rest = [signature, Node(Kind.LIST, arguments, ", ")]
        return Node(Kind.BOX, [Node(Kind.BOX_LAYOUT, fields), *rest])

    def _metatype(self) -> Node:
        return Node(Kind.METATYPE, [self.type_()])

    def _represented(self, kind: Kind) -> Node:
        representation = _REPRESENTATIONS.get(self.character())
        if representation is None:
            raise NotUnderstoodError
        return Node(kind, [self.type_()], representation)

    def _represented_metatype(self) -> Node:
        return self._represented(Kind.METATYPE)

    def _protocols(self) -> Node:
        if self.skip("M"):
            return Node(Kind.EXISTENTIAL_METATYPE, [self.type_()])
        return self._protocol_list()

    def _represented_protocols(self) -> Node:
        if self.skip("M"):
            return self._represented(Kind.EXISTENTIAL_METATYPE)
        return self._protocol_list()

    def _protocol_list(self) -> Node:
        found = []
        while not self.skip("_"):
            found.append(self.protocol())
        return Node(Kind.PROTOCOL_LIST, found)

    def _archetype(self) -> Node:
        if self.skip("u"):
            return Node(Kind.OPAQUE_RETURN_TYPE)
        if self.skip("U"):
            self.index()
            return Node(Kind.OPAQUE_RETURN_TYPE)
        levels = 1
        while self.skip("Q"):
            levels += 1
        if self.skip("S"):
            node = self.substitution()
        else:
            self.expect("s")
            node = Node(Kind.MODULE, text=STANDARD_LIBRARY)
        for _ in range(levels):
            node = self.substitutable(Node(Kind.ASSOCIATED_TYPE, [node, self.identifier()]))
        return node

    def _tuple(self) -> Node:
        elements = []
        while not self.skip("_"):
            label = self.identifier().text if self.peek() in _LABEL_STARTS else ""
            elements.append(Node(Kind.TUPLE_ELEMENT, [self.type_()], label))
        return Node(Kind.TUPLE, elements)

    def _variadic_tuple(self) -> Node:
        tuple_ = self._tuple()
        if tuple_.children:
            tuple_.children[-1].index = 1
        return tuple_

    def _generic(self) -> Node:
        signature = self.generic_signature()
        return Node(Kind.DEPENDENT_GENERIC_TYPE, [signature, self.type_()])

    def _self(self) -> Node:
        return Node(Kind.DYNAMIC_SELF, [self.type_()])


_READERS = {
    "B": OldTypes._builtin,  # noqa: SLF001 (of this module's own class, here and below)
    "D": OldTypes._self,  # noqa: SLF001
    "E": OldTypes._error,  # noqa: SLF001
    "G": OldTypes.bound_generic,
    "M": OldTypes._metatype,  # noqa: SLF001
    "P": OldTypes._protocols,  # noqa: SLF001
    "Q": OldTypes._archetype,  # noqa: SLF001
    "q": OldTypes.dependent_type,
    "x": lambda _: FIRST_PARAMETER,
    "w": OldTypes.parameter_member,
    "W": OldTypes.parameter_member_path,
    "S": OldTypes.substitution,
    "T": OldTypes._tuple,  # noqa: SLF001
    "t": OldTypes._variadic_tuple,  # noqa: SLF001
    "u": OldTypes._generic,  # noqa: SLF001
    "Xb": OldTypes._box_of_one,  # noqa: SLF001
    "XB": OldTypes._box,  # noqa: SLF001
    "XM": OldTypes._represented_metatype,  # noqa: SLF001
    "XP": OldTypes._represented_protocols,  # noqa: SLF001
    "XF": OldTypes.impl_function,
}
