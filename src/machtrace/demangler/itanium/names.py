"""Names of C++ entities: the Itanium C++ ABI, section 5.1.3 "Operator Encodings" and around."""

from __future__ import annotations

from machtrace.demangler.itanium.nodes import OPERATORS, Node
from machtrace.demangler.itanium.templates import Templates
from machtrace.frozen import dataclass

_STANDARD = {
    "a": ("std::allocator", "allocator"),
    "b": ("std::basic_string", "basic_string"),
    "s": ("std::string", "string"),
    "i": ("std::istream", "istream"),
    "o": ("std::ostream", "ostream"),
    "d": ("std::iostream", "iostream"),
}
_EXPANDED = {
    "std::string": (
        "std::basic_string<char, std::char_traits<char>, std::allocator<char>>",
        "basic_string",
    ),
    "std::istream": ("std::basic_istream<char, std::char_traits<char>>", "basic_istream"),
    "std::ostream": ("std::basic_ostream<char, std::char_traits<char>>", "basic_ostream"),
    "std::iostream": ("std::basic_iostream<char, std::char_traits<char>>", "basic_iostream"),
}
"""The full forms of ``Ss`` and the other abbreviations, for names of their constructors."""
_INLINE_NAMESPACES = frozenset({"__1", "__2", "__ndk1", "__cxx11", "__fs", "_V2"})
"""Inline namespaces of the standard library, which identify its vendor and version."""
_STANDARD_NAMESPACE = "std"
_FUNCTIONS_OF_LAMBDAS = frozenset({"operator()", "__invoke", "_FUN"})


@dataclass(slots=True)
class NameEnd:
    """How a name ends: this decides whether a return type follows."""

    template_arguments: bool = False
    constructor_or_conversion: bool = False
    qualifiers: str = ""
    """Qualifiers of the member function, each after a space."""
    closure: list[str] | None = None
    """The parameters of the lambda whose function this is."""
    explicit_object: bool = False
    """Whether the first parameter is an explicit ``this``."""


class Names(Templates):
    """The rules of ``<name>``."""

    def any_name(self) -> Node:
        """``<name>``, without its :class:`NameEnd`."""
        return self.named(None)

    def named(self, end: NameEnd | None) -> Node:
        """``<name>``; ``end`` receives the facts about its end."""
        self.deeper()
        letter = self.name[self.at]
        if letter == "N":
            node = self._nested(end)
        elif letter == "Z":
            node = self._local(end)
        else:
            node, is_known = self.unscoped_name_or_substitution(end)
            if self.name[self.at] == "I":
                if not is_known:
                    node.is_no_type = True
                    self.substitutions.append(node)
                node = self.with_arguments(node, remember=end is not None)
                if end is not None:
                    end.template_arguments = True
            elif is_known:
                raise self.fail()
        self.higher()
        return node

    def unscoped_name_or_substitution(self, end: NameEnd | None = None) -> tuple[Node, bool]:
        """A name outside of any class, and whether it is a substitution alone."""
        scope, module = None, ""
        if self.take("St"):
            scope = Node(_STANDARD_NAMESPACE)
        if self.name[self.at] == "S":
            node = self._substitution()
            if node.base != _MODULE:
                if scope is not None:
                    raise self.fail()
                return node, True
            module = node.left
        return self._unqualified(end, scope, module), False

    def _substitution(self) -> Node:
        self.expect("S")
        standard = _STANDARD.get(self.name[self.at])
        if standard is None:
            return self.substitution()
        self.at += 1
        node = Node(standard[0], base=standard[1])
        tagged = self._abi_tagged(node)
        if tagged is not node:
            self.substitutions.append(tagged)
        return tagged

    def _nested(  # noqa: C901, PLR0912 (one arm a kind of prefix)
        self, end: NameEnd | None
    ) -> Node:
        self.expect("N")
        explicit_object = self.take("H")
        qualifiers = self.qualifiers()
        qualifiers += " &&" if self.take("O") else " &" if self.take("R") else ""
        if end is not None:
            end.qualifiers, end.explicit_object = qualifiers, explicit_object
        scope: Node | None = None
        module = ""
        while not self.take("E"):
            if end is not None:
                end.template_arguments = False
            two = self.name[self.at : self.at + 2]
            if two[0] == "T" and scope is None:
                scope = self.template_parameter()
            elif two[0] == "I":
                if scope is None or scope.shape == 3:  # noqa: PLR2004 (Shape.TEMPLATE)
                    raise self.fail()
                if scope.again is None:
                    scope.is_no_type = True
                scope = self.with_arguments(scope, remember=end is not None)
                if end is not None:
                    end.template_arguments = True
            elif two in {"Dt", "DT"} and scope is None:
                scope = self.decltype()
            elif two[0] == "S":
                is_standard = self.take("St")
                node = Node(_STANDARD_NAMESPACE) if is_standard else self._substitution()
                if node.base == _MODULE:
                    module = node.left
                elif scope is not None:
                    raise self.fail()
                else:
                    scope = node
                    if self.is_strict and (scope.right or scope.left.endswith(("*", "&"))):
                        raise self.fail()
                    if end is not None:
                        self.own_levels = scope.levels
                continue
            else:
                scope, module = self._unqualified(end, scope, module), ""
            if self.take("M"):
                scope.is_no_type = True
                if not self.numbering.initialised:
                    continue
            self.substitutions.append(scope)
        if scope is None or not self.substitutions:
            raise self.fail()
        self.substitutions.pop()
        return scope

    def _local(self, end: NameEnd | None) -> Node:
        self.expect("Z")
        outside = self.outer_levels, self.own_levels
        function = self.encoding()
        self.expect("E")
        if self.take("s"):
            self._discriminator()
            return self.lift(lambda of: Node(of.text + "::string literal"), function)
        around, self.template_levels = self.template_levels, []
        self.outer_levels, self.own_levels = self.levels_read, ()
        if self.take("d"):
            self.number(signed=True)
            self.expect("_")
            entity = self.named(end)
        else:
            entity = self.named(end)
            self._discriminator()
        if end is None:  # else what follows is of the entity, and so are its arguments
            self.template_levels = around
            self.outer_levels, self.own_levels = outside
        return self.lift(_scoped, function, entity)

    def _discriminator(self) -> None:
        name = self.name
        if name[self.at] == "_":
            if name[self.at + 1].isdigit():
                self.at += 2
            elif name[self.at + 1] == "_":
                start = self.at
                self.at += 2
                if not self.number() or not self.take("_"):
                    self.at = start
        elif name[self.at].isdigit():
            start = self.at
            self.number()
            if self.at != len(name) - 2:
                self.at = start

    def _unqualified(self, end: NameEnd | None, scope: Node | None, module: str) -> Node:
        module = self._module(module)
        befriended = scope is not None and self.take("F")
        self.take("L")
        letter = self.name[self.at]
        if "1" <= letter <= "9":
            text = self.source_name()
            node = Node(text, base=text)
        elif self.take("DC"):
            bound = []
            while not self.take("E"):
                bound.append(self.source_name())
            node = Node(f"[{', '.join(bound)}]")
        elif letter in "CD" and letter != _NO_LETTER and scope is not None and not module:
            scope, node = self._constructor_or_destructor(end, scope)
        elif letter == "U":
            node = self.unnamed_type(clear=end is not None)
        else:
            node = self._operator(end)
        if module:
            text = f"{node.text}@{module}"
            node = Node(text, base=node.base)
        node = self._abi_tagged(node)
        if scope is None:
            return node
        if end is not None and node.text in _FUNCTIONS_OF_LAMBDAS:
            end.closure = scope.closure
        return self._in_scope(scope, node, befriended=befriended)

    def _in_scope(self, scope: Node, node: Node, *, befriended: bool) -> Node:
        is_library = scope.left == _STANDARD_NAMESPACE and node.left in _INLINE_NAMESPACES
        if is_library and self.simplified:
            return scope
        made = self.lift(_befriended if befriended else _scoped, scope, node)
        made.levels, made.closure, made.is_no_type = scope.levels, node.closure, is_library
        return made

    def _module(self, module: str) -> str:
        while self.take("W"):
            partition = ":" if self.take("P") else ""
            name = self.source_name()
            module += (partition or ("." if module else "")) + name
            self.substitutions.append(Node(module, base=_MODULE))
        return module

    def _abi_tagged(self, node: Node) -> Node:
        while self.take("B"):
            tag = self.source_name()
            node = self.lift(lambda of, tag=tag: Node(f"{of.text}[abi:{tag}]", base=of.base), node)
        return node

    def _constructor_or_destructor(self, end: NameEnd | None, scope: Node) -> tuple[Node, Node]:
        full = _EXPANDED.get(scope.left) if not scope.right else None
        if full is not None and scope.shape == 0:
            scope = Node(full[0], base=full[1])
        if end is not None:
            end.constructor_or_conversion = True
        if self.take("C"):
            inherited = self.take("I")
            if self.name[self.at] not in "12345" or self.name[self.at] == _NO_LETTER:
                raise self.fail()
            self.at += 1
            if inherited:
                base = self.named(end)  # its arguments may be the constructor's
                if self.numbering.bases:
                    self.substitutions.append(base)
            return scope, self.lift(lambda of: Node(of.base, base=of.base), scope)
        self.expect("D")
        if self.name[self.at] not in "01245":
            raise self.fail()
        self.at += 1
        return scope, self.lift(lambda of: Node("~" + of.base, base=of.base), scope)

    def _operator(self, end: NameEnd | None) -> Node:
        two = self.name[self.at : self.at + 2]
        if two == "cv":
            return self._conversion(end)
        if self.take("li"):
            return Node('operator"" ' + self.source_name())
        if two[0] == "v" and two[1].isdigit():
            self.at += 2
            return Node("operator " + self.source_name())
        operator = OPERATORS.get(two)
        if operator is None or not operator.is_name:
            raise self.fail()
        self.at += 2
        return Node(operator.name)

    def operator_symbol(self) -> Node:
        """``<operator-name>``."""
        return self._operator(None)

    def _conversion(self, end: NameEnd | None) -> Node:
        self.expect("cv")
        takes, self.takes_arguments = self.takes_arguments, False
        forward, self.allows_forward = self.allows_forward, self.allows_forward or end is not None
        to = self.type()
        self.takes_arguments, self.allows_forward = takes, forward
        if end is not None:
            end.constructor_or_conversion = True
        return self.lift(lambda of: Node(f"operator {of.text}"), to)


_MODULE = "\0module"
"""Marks what is no name of its own, but a module's."""
_NO_LETTER = "\0"


def _befriended(scope: Node, name: Node) -> Node:
    return Node(f"{scope.text}::friend {name.text}")


def _scoped(scope: Node, name: Node) -> Node:
    return Node(f"{scope.text}::{name.text}", "", 0, name.base)
