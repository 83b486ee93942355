"""Pieces of a demangled C++ name, as text.

A declarator of C++ is written round its name (``int (*name) [3]``), so a piece has what is left of
the name and what is right of it. What stands for each element of a parameter pack in turn keeps
how it is made, for the expansion to make it as often as there are elements.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias


class UnreadableNameError(Exception):
    """A name is not of the grammar, or too much for the limits; caught where demangling starts."""


class Shape(IntEnum):
    """What a piece needs of those that are built on it."""

    PLAIN = 0
    ARRAY = 1
    FUNCTION = 2
    TEMPLATE = 3
    """A name with template arguments: it takes no others."""


class Precedence(IntEnum):
    """Of C++ operators, tightest first."""

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

    __slots__ = ("base", "left", "length", "make", "precedence", "referred", "right", "shape")

    def __init__(self, left: str, right: str = "", shape: int = 0, base: str = "") -> None:
        self.left = left
        self.right = right
        self.shape = shape
        """A :class:`Shape`."""
        self.base = base
        """Of a class's name: what its constructors are called."""
        self.precedence = 0
        """Of an expression: a :class:`Precedence`."""
        self.referred: tuple[str, Node] | None = None
        """Of a reference: its sign, and what it refers to."""
        self.make: Maker | None = None
        """Of what is made of a parameter pack: how it looks for each of the elements."""
        self.length = 0
        """How many elements there are."""

    @property
    def text(self) -> str:
        """All of it, around no name."""
        return self.left + self.right if self.right else self.left

    def at(self, index: int) -> Node:
        """It for the ``index``-th element of the parameter pack; itself where there is none."""
        return self if self.make is None else self.make(index)


NOTHING = Node("")


def pack(elements: list[Node]) -> Node:
    """What each of ``elements`` is to be put in for, as an expansion comes to it."""
    shown = elements[0] if elements else NOTHING
    node = Node(shown.left, shown.right, shown.shape, shown.base)
    node.referred = shown.referred
    node.precedence = shown.precedence
    node.length = len(elements)
    node.make = lambda index: elements[index] if index < len(elements) else NOTHING
    return node


def joined(nodes: list[Node]) -> str:
    """A list with commas; empty expansions leave no comma."""
    return ", ".join([text for node in nodes if (text := node.text)])


def operand(node: Node, limit: int, *, strictly: bool = False) -> str:
    """An operand's text, in parentheses unless it binds tighter than ``limit``.

    ``strictly``: one that binds as tightly needs none.
    """
    if node.precedence >= limit + strictly:
        return f"({node.text})"
    return node.text
