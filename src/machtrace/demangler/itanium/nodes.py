"""Pieces of a demangled C++ name, as text.

A declarator of C++ is written round its name (``int (*name) [3]``), so a piece has what is left of
the name and what is right of it. What stands for each element of a parameter pack in turn keeps
how it is made, for the expansion to make it as often as there are elements.

Operators of C++: the Itanium C++ ABI, section 5.1.3.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum, auto
from typing import TypeAlias

from machtrace.frozen import dataclass


class UnreadableNameError(Exception):
    """A name is not of the grammar, or too much for the limits; caught where demangling starts."""


class Shape(IntEnum):
    """The syntax that a piece requires of declarators around it."""

    PLAIN = 0
    ARRAY = 1
    FUNCTION = 2
    TEMPLATE = 3
    """A name with template arguments: it takes no others."""


class Precedence(IntEnum):
    """Precedence of C++ operators, tightest first."""

    PRIMARY = 0
    POSTFIX = 1
    UNARY = 2
    CAST = 3
    POINTER_TO_MEMBER = 4
    MULTIPLICATIVE = 5
    ADDITIVE = 6
    SHIFT = 7
    SPACESHIP = 8
    RELATIONAL = 9
    EQUALITY = 10
    AND = 11
    XOR = 12
    OR = 13
    AND_IF = 14
    OR_IF = 15
    CONDITIONAL = 16
    ASSIGN = 17
    COMMA = 18
    DEFAULT = 19


Maker: TypeAlias = Callable[[int], "Node"]


class Node:
    """A piece of a name."""

    __slots__ = (
        "again",
        "base",
        "closure",
        "is_no_type",
        "is_qualified",
        "left",
        "length",
        "levels",
        "make",
        "precedence",
        "referred",
        "right",
        "scope",
        "shape",
    )

    def __init__(self, left: str, right: str = "", shape: int = 0, base: str = "") -> None:
        self.left = left
        self.right = right
        self.shape = shape
        """A :class:`Shape`."""
        self.base = base
        """The name of the class's constructors, if this is a class's name."""
        self.precedence = 0
        """An expression's :class:`Precedence`."""
        self.referred: tuple[str, Node] | None = None
        """A reference's sign and referent."""
        self.make: Maker | None = None
        """Builds the node for one element, if it depends on a parameter pack."""
        self.length = 0
        """Number of elements."""
        self.again: Callable[[], Node] | None = None
        """Builds the node where it is referred to, if it depends on a template parameter."""
        self.scope: tuple[int, list[Node]] | None = None
        """Level and arguments of the parameters that it was built with; None if they differ."""
        self.is_no_type = False
        """Whether it is a namespace, a variable, or a template without arguments."""
        self.is_qualified = False
        """Whether it is const or volatile, which the type of a parameter is not."""
        self.closure: list[str] | None = None
        """The parameters of a lambda, if this is one's type and none is generic."""
        self.levels: tuple[list[Node], ...] = ()
        """The template arguments of the entity and of those around it, the outermost first."""

    @property
    def text(self) -> str:
        """All of it, around no name."""
        return self.left + self.right if self.right else self.left

    def at(self, index: int) -> Node:
        """It for the ``index``-th element of the parameter pack; itself where there is none."""
        return self if self.make is None else self.make(index)

    def copied(self) -> Node:
        """Return a node of the same text that depends on no template parameter yet."""
        node = Node(self.left, self.right, self.shape, self.base)
        node.precedence, node.referred = self.precedence, self.referred
        node.make, node.length, node.levels = self.make, self.length, self.levels
        return node


NOTHING = Node("")


def pack(elements: list[Node]) -> Node:
    """Return a node that stands for each of ``elements`` in turn, in an expansion."""
    shown = elements[0] if elements else NOTHING
    node = Node(shown.left, shown.right, shown.shape, shown.base)
    node.referred = shown.referred
    node.precedence = shown.precedence
    node.length = len(elements)
    node.make = lambda index: elements[index] if index < len(elements) else NOTHING
    return node


def joined(nodes: list[Node]) -> str:
    """A list with commas; empty expansions leave no comma."""
    return ", ".join([text for node in nodes if (text := operand(node, Precedence.COMMA))])


def operand(node: Node, limit: int, *, strictly: bool = False) -> str:
    """An operand's text, in parentheses unless it binds tighter than ``limit``.

    ``strictly``: one that binds as tightly needs none.
    """
    if node.precedence >= limit + strictly:
        return f"({node.text})"
    return node.text


class Form(Enum):
    """How an operator stands with its operands."""

    PREFIX = auto()
    POSTFIX = auto()
    BINARY = auto()
    SUBSCRIPT = auto()
    MEMBER = auto()
    NEW = auto()
    DELETE = auto()
    CALL = auto()
    PARENTHESISED_CALL = auto()
    CONVERSION = auto()
    CONDITIONAL = auto()
    NAMED_CAST = auto()
    OF_TYPE = auto()
    OF_EXPRESSION = auto()
    NAME_ONLY = auto()


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator."""

    form: Form
    precedence: Precedence
    symbol: str
    """As expressions have it."""
    is_name: bool = True
    """Whether it can be overloaded."""

    @property
    def name(self) -> str:
        """The name of a function that overloads it."""
        return "operator" + (" " if self.symbol[:1].isalpha() else "") + self.symbol


def _forms(
    form: Form, precedence: Precedence, *pairs: str, is_name: bool = True
) -> dict[str, Operator]:
    parts = (pair.split(" ", 1) for pair in pairs)
    return {code: Operator(form, precedence, symbol, is_name) for code, symbol in parts}


OPERATORS: dict[str, Operator] = {
    **_forms(Form.BINARY, Precedence.ASSIGN, "aN &=", "aS =", "dV /=", "eO ^=", "lS <<=", "mI -="),
    **_forms(Form.BINARY, Precedence.ASSIGN, "mL *=", "oR |=", "pL +=", "rM %=", "rS >>="),
    **_forms(Form.BINARY, Precedence.AND_IF, "aa &&"),
    **_forms(Form.BINARY, Precedence.OR_IF, "oo ||"),
    **_forms(Form.BINARY, Precedence.AND, "an &"),
    **_forms(Form.BINARY, Precedence.OR, "or |"),
    **_forms(Form.BINARY, Precedence.XOR, "eo ^"),
    **_forms(Form.BINARY, Precedence.COMMA, "cm ,"),
    **_forms(Form.BINARY, Precedence.MULTIPLICATIVE, "dv /", "ml *", "rm %"),
    **_forms(Form.BINARY, Precedence.ADDITIVE, "mi -", "pl +"),
    **_forms(Form.BINARY, Precedence.SHIFT, "ls <<", "rs >>"),
    **_forms(Form.BINARY, Precedence.SPACESHIP, "ss <=>"),
    **_forms(Form.BINARY, Precedence.RELATIONAL, "ge >=", "gt >", "le <=", "lt <"),
    **_forms(Form.BINARY, Precedence.EQUALITY, "eq ==", "ne !="),
    **_forms(Form.PREFIX, Precedence.UNARY, "ad &", "co ~", "de *", "ng -", "nt !", "ps +"),
    **_forms(Form.POSTFIX, Precedence.POSTFIX, "mm --", "pp ++"),
    **_forms(Form.SUBSCRIPT, Precedence.POSTFIX, "ix []"),
    **_forms(Form.MEMBER, Precedence.POSTFIX, "pt ->"),
    **_forms(Form.MEMBER, Precedence.POSTFIX, "dt .", is_name=False),
    **_forms(Form.MEMBER, Precedence.POINTER_TO_MEMBER, "pm ->*"),
    **_forms(Form.MEMBER, Precedence.POINTER_TO_MEMBER, "ds .*", is_name=False),
    **_forms(Form.NEW, Precedence.UNARY, "na new[]", "nw new"),
    **_forms(Form.DELETE, Precedence.UNARY, "da delete[]", "dl delete"),
    **_forms(Form.CALL, Precedence.POSTFIX, "cl ()"),
    **_forms(Form.PARENTHESISED_CALL, Precedence.POSTFIX, "cp ()", is_name=False),
    **_forms(Form.CONVERSION, Precedence.CAST, "cv cast", is_name=False),
    **_forms(Form.CONDITIONAL, Precedence.CONDITIONAL, "qu ?"),
    **_forms(Form.NAME_ONLY, Precedence.PRIMARY, "aw co_await"),
    **_forms(
        Form.NAMED_CAST, Precedence.POSTFIX, "cc const_cast", "dc dynamic_cast", is_name=False
    ),
    **_forms(
        Form.NAMED_CAST, Precedence.POSTFIX, "rc reinterpret_cast", "sc static_cast", is_name=False
    ),
    **_forms(Form.OF_TYPE, Precedence.UNARY, "at alignof", "st sizeof", is_name=False),
    **_forms(Form.OF_EXPRESSION, Precedence.UNARY, "az alignof", "sz sizeof", is_name=False),
    **_forms(Form.OF_TYPE, Precedence.POSTFIX, "ti typeid", is_name=False),
    **_forms(Form.OF_EXPRESSION, Precedence.POSTFIX, "te typeid", is_name=False),
}
"""By their two letters."""
