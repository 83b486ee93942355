"""Types in mangled C++ names: the Itanium C++ ABI, section 5.1.5 "Type encodings"."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from machtrace.demangler.itanium.cursor import Cursor
from machtrace.demangler.itanium.nodes import Node, Shape, joined

BUILTIN_TYPES = {
    "v": "void",
    "w": "wchar_t",
    "b": "bool",
    "c": "char",
    "a": "signed char",
    "h": "unsigned char",
    "s": "short",
    "t": "unsigned short",
    "i": "int",
    "j": "unsigned int",
    "l": "long",
    "m": "unsigned long",
    "x": "long long",
    "y": "unsigned long long",
    "n": "__int128",
    "o": "unsigned __int128",
    "f": "float",
    "d": "double",
    "e": "long double",
    "g": "__float128",
    "z": "...",
}
_D_TYPES = {
    "d": "decimal64",
    "e": "decimal128",
    "f": "decimal32",
    "h": "half",
    "i": "char32_t",
    "s": "char16_t",
    "u": "char8_t",
    "a": "auto",
    "c": "decltype(auto)",
    "n": "std::nullptr_t",
}
_FIXED_POINT = {"s": "short ", "t": "unsigned short ", "i": "", "j": "unsigned "}
_FIXED_POINT |= {"l": "long ", "m": "unsigned long "}
_FIXED_NODES = {
    before + kind + letter: Node(f"{saturates}{size}{name}")
    for before, saturates in (("D", ""), ("DSD", "_Sat "))
    for kind, name in (("A", "_Accum"), ("R", "_Fract"))
    for letter, size in _FIXED_POINT.items()
}
_BUILTIN_NODES = {letter: Node(text) for letter, text in BUILTIN_TYPES.items()}
_D_NODES = {letter: Node(text) for letter, text in _D_TYPES.items()}
_PLACEHOLDERS = (_D_NODES["a"], _D_NODES["c"])
_ELABORATED = {"s": "struct", "u": "union", "e": "enum"}
_SUFFIXES = {"C": " complex", "G": " imaginary"}


class Types(Cursor):
    """The rules of ``<type>``."""

    def type(self) -> Node:
        """``<type>``; what is no builtin can be referred to by later parts."""
        letter = self.name[self.at]
        builtin = _BUILTIN_NODES.get(letter)
        if builtin is not None:
            self.at += 1
            return builtin
        self.deeper()
        if letter == "S" and self.name[self.at + 1] != "t":
            node, is_known = self._substituted()
            if is_known:
                self.higher()
                return node
        elif letter == "D" and (plain := self._plain_d_type()) is not None:
            if self.numbering.placeholders and plain in _PLACEHOLDERS:
                self.substitutions.append(plain)
            self.higher()
            return plain
        else:
            rule = self._TYPE_RULES.get(letter)
            node = self.any_name() if rule is None else rule(self)
        self.substitutions.append(node)
        self.higher()
        return node

    def _plain_d_type(self) -> Node | None:
        """A type of two letters or more that nothing refers to later."""
        if self.name[self.at + 1] == "F":
            return self._floating()
        plain = _D_NODES.get(self.name[self.at + 1])
        if plain is not None:
            self.at += 2
            return plain
        for size in (3, 5):
            plain = _FIXED_NODES.get(self.name[self.at : self.at + size])
            if plain is not None:
                self.at += size
                return plain
        return None

    def _substituted(self) -> tuple[Node, bool]:
        """A type that begins with a substitution, and whether it is one already."""
        node, is_known = self.unscoped_name_or_substitution()
        if self.name[self.at] == "I" and (not is_known or self.takes_arguments):
            if not is_known:
                self.substitutions.append(node)
            return self.with_arguments(node, remember=False), False
        return node, is_known

    def _pointer(self) -> Node:
        self.at += 1
        return self.lift(_pointer_to, self.type())

    def _reference(self) -> Node:
        sign = "&" if self.name[self.at] == "R" else "&&"
        self.at += 1
        return self.lift(lambda to: _reference_to(sign, to), self.type())

    def _suffixed(self) -> Node:
        suffix = _SUFFIXES[self.name[self.at]]
        self.at += 1
        return self.lift(lambda of: Node(of.text + suffix), self.type())

    def _qualified(self) -> Node:
        start = self.at
        qualifiers = self.qualifiers()
        after = self.name[self.at : self.at + 2]
        if after[0] == "F" or after in {"Do", "DO", "Dw", "Dx"}:
            self.at = start
            return self._function()
        node = self.lift(
            lambda of: Node(of.left + qualifiers, of.right, of.shape, of.base), self.type()
        )
        node.is_qualified = True
        return node

    def qualifiers(self) -> str:
        """``<CV-qualifiers>``, each after a space."""
        restrict = " restrict" if self.take("r") else ""
        volatile = " volatile" if self.take("V") else ""
        const = " const" if self.take("K") else ""
        return const + volatile + restrict

    def _vendor_qualified(self) -> Node:
        self.expect("U")
        extension = self.source_name()
        if extension.startswith("objcproto"):
            protocol = extension.removeprefix("objcproto").lstrip("0123456789")
            return self.lift(lambda of: _with_protocol(of, protocol), self._below_qualifier())
        arguments = Node("")
        if self.name[self.at] == "I":
            arguments = self.template_arguments(remember=False)
        return self.lift(
            lambda of, some: Node(f"{of.text} {extension}{some.text}"),
            self._below_qualifier(),
            arguments,
        )

    def _below_qualifier(self) -> Node:
        """Parse the rest of a qualified type; all qualifiers together make one type."""
        letter = self.name[self.at]
        if letter == "U":
            self.deeper()
            node = self._vendor_qualified()
            self.higher()
            return node
        return self._qualified() if letter in "rVK" else self.type()

    def _vendor_builtin(self) -> Node:
        self.expect("u")
        name = self.source_name()
        if self.take("I"):
            inner = self.type()
            self.expect("E")
            return self.lift(lambda of: Node(f"{name}({of.text})"), inner)
        return Node(name)

    def _function(self) -> Node:
        qualifiers = self.qualifiers()
        exception = self._exception_specification()
        self.take("Dx")
        self.expect("F")
        self.take("Y")
        result = self.type()
        reference, parameters = "", []
        while not self.take("E"):
            if self.take("v"):
                continue
            if self.take("RE"):
                reference = " &"
                break
            if self.take("OE"):
                reference = " &&"
                break
            parameters.append(self.type())
        tail = qualifiers + reference

        def made(result: Node, exception: Node, *parameters: Node) -> Node:
            right = f"({joined(list(parameters))}){result.right}{tail}{exception.text}"
            return Node(result.left + " ", right, Shape.FUNCTION)

        return self.lift(made, result, exception, *parameters)

    def _exception_specification(self) -> Node:
        if self.take("Do"):
            return Node(" noexcept")
        if self.take("DO"):
            condition = self.expression()
            self.expect("E")
            return self.lift(lambda one: Node(f" noexcept({one.text})"), condition)
        if self.take("Dw"):
            thrown = self.nodes_until("E", self.type)
            return self.lift_list(lambda types: Node(f" throw({joined(types)})"), thrown)
        return Node("")

    def _array(self) -> Node:
        self.expect("A")
        dimension = Node(self.number())
        if not dimension.left and self.name[self.at] != "_":
            dimension = self.expression()
        self.expect("_")
        return self.lift(_array_of, self.type(), dimension)

    def _member_pointer(self) -> Node:
        self.expect("M")
        owner = self.type()
        return self.lift(_pointer_to_member, owner, self.type())

    def _parameter_or_elaborated(self) -> Node:
        keyword = _ELABORATED.get(self.name[self.at + 1])
        if keyword is not None:
            self.at += 2
            return self.lift(lambda of: Node(f"{keyword} {of.text}"), self.any_name())
        node = self.template_parameter()
        if self.takes_arguments and self.name[self.at] == "I":
            self.substitutions.append(node)
            return self.with_arguments(node, remember=False)
        return node

    def _d_type(self) -> Node:
        rule = self._D_TYPE_RULES.get(self.name[self.at + 1])
        if rule is None:
            raise self.fail()
        return rule(self)

    def _pack_expansion(self) -> Node:
        self.expect("Dp")
        return self.expanded(self.type())

    def _floating(self) -> Node:
        self.expect("DF")
        bits = self.number()
        if bits == "16" and self.take("b"):
            return Node("std::bfloat16_t")
        suffix = "x" if self.take("x") else ""
        if not suffix:
            self.expect("_")
        return Node(f"_Float{bits}{suffix}")

    def _bit_integer(self) -> Node:
        unsigned = "unsigned " if self.name[self.at + 1] == "U" else ""
        self.at += 2
        digits = self.number()
        size = Node(digits) if digits else self.expression()
        self.expect("_")
        return self.lift(lambda bits: Node(f"{unsigned}_BitInt({bits.text})"), size)

    def _pack_index(self) -> Node:
        self.expect("Dy")
        return self.lift(indexed, self.expanded(self.type()), self.expression())

    def _constrained(self) -> Node:
        kind = " decltype(auto)" if self.name[self.at + 1] == "K" else " auto"
        self.at += 2
        return self.lift(lambda of: Node(of.text + kind), self.any_name())

    def _vector(self) -> Node:
        self.expect("Dv")
        dimension = Node(self.number())
        if not dimension.left and self.name[self.at] != "_":
            dimension = self.expression()
        self.expect("_")
        element = Node("pixel") if self.take("p") else self.type()
        return self.lift(
            lambda of, size: Node(f"{of.text} vector[{size.text}]"), element, dimension
        )

    def decltype(self) -> Node:
        """``Dt <expression> E``, ``DT <expression> E``."""
        self.at += 2
        with self.greater_than_is_plain():
            expression = self.expression()
        self.expect("E")
        return self.lift(lambda of: Node(f"decltype({of.text})"), expression)

    def with_arguments(self, name: Node, *, remember: bool) -> Node:
        """``name`` with the template arguments that are next."""
        arguments = self.template_arguments(remember=remember, around=name.levels)
        node = self.lift(named_with_arguments, name, arguments)
        node.levels = arguments.levels
        if self.is_strict and not _can_be_function(name, arguments.levels[-1]):
            raise self.fail()
        return node

    _TYPE_RULES: ClassVar[dict[str, Callable[[Types], Node]]] = {
        "P": _pointer,
        "R": _reference,
        "O": _reference,
        "r": _qualified,
        "V": _qualified,
        "K": _qualified,
        "U": _vendor_qualified,
        "u": _vendor_builtin,
        "F": _function,
        "A": _array,
        "M": _member_pointer,
        "T": _parameter_or_elaborated,
        "C": _suffixed,
        "G": _suffixed,
        "D": _d_type,
    }
    _D_TYPE_RULES: ClassVar[dict[str, Callable[[Types], Node]]] = {
        "p": _pack_expansion,
        "B": _bit_integer,
        "U": _bit_integer,
        "k": _constrained,
        "K": _constrained,
        "v": _vector,
        "y": _pack_index,
        "t": decltype,
        "T": decltype,
        "o": _function,
        "O": _function,
        "w": _function,
        "x": _function,
    }


def named_with_arguments(name: Node, arguments: Node) -> Node:
    """A template's name with its arguments, which are not in what its constructors are called."""
    return Node(name.text + arguments.left, "", Shape.TEMPLATE, name.base)


_FUNCTION_TEMPLATES = frozenset(
    f"{library}::{name}"
    for library in ("std", "std::__1")
    for name in ("function", "__function::__func", "__function::__base")
)


def _can_be_function(name: Node, arguments: list[Node]) -> bool:
    """Return whether ``std::function``, if this is a part of it, is one of a function.

    libc++ stores a lambda with the function's type behind it, most often of the same parameters.
    """
    if name.text not in _FUNCTION_TEMPLATES or not arguments:
        return True
    of, closure = arguments[-1], arguments[0].closure
    if of.shape != Shape.FUNCTION:
        return of.again is not None
    return closure is None or of.right.startswith(f"({', '.join(closure)})")


def indexed(pack: Node, index: Node) -> Node:
    """One element of a parameter pack."""
    return Node(f"({pack.text})[{index.text}]")


def _pointer_to(to: Node) -> Node:
    if to.left.startswith("objc_object<"):
        return Node("id" + to.left.removeprefix("objc_object"))
    if to.shape == Shape.ARRAY:
        return Node(to.left + " (*", ")" + to.right)
    if to.shape == Shape.FUNCTION:
        return Node(to.left + "(*", ")" + to.right)
    return Node(to.left + "*", to.right)


def _reference_to(sign: str, to: Node) -> Node:
    if to.referred is not None:  # a reference to a reference is one reference
        inner, to = to.referred
        sign = min(sign, inner, key=len)
    if to.shape == Shape.ARRAY:
        node = Node(to.left + " (" + sign, ")" + to.right)
    elif to.shape == Shape.FUNCTION:
        node = Node(to.left + "(" + sign, ")" + to.right)
    else:
        node = Node(to.left + sign, to.right)
    node.referred = (sign, to)
    return node


def _array_of(of: Node, dimension: Node) -> Node:
    following = of.right.removeprefix(" ") if of.shape == Shape.ARRAY else of.right
    return Node(of.left, f" [{dimension.text}]{following}", Shape.ARRAY)


def _pointer_to_member(owner: Node, member: Node) -> Node:
    opening = {Shape.ARRAY: " (", Shape.FUNCTION: "("}.get(Shape(member.shape % 3), " ")
    closing = "" if opening == " " else ")"
    return Node(f"{member.left}{opening}{owner.text}::*", closing + member.right)


def _with_protocol(of: Node, protocol: str) -> Node:
    return Node(f"{of.text}<{protocol}>")
