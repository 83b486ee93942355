"""The stack machine that reads a mangled Swift name (Mangling.rst, "Mangling").

The grammar is postfix: operands are pushed, and an operator takes what it needs from the stack and
pushes what it makes of it. Operators are functions of the machine that return a node; what an
operator misses ends the reading with :class:`NotUnderstoodError`, or with IndexError where the
stack or the name is at its end. No operator calls itself, whatever the name.

A mangled Swift name of any age, and how far it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias, TypeVar

from machtrace.demangler.swift.nodes import (
    CONTEXTS,
    Kind,
    Node,
    NotUnderstoodError,
)

_Choice = TypeVar("_Choice")
END = "\0"
"""Stands behind the last character of a name; a name with one in it ends there."""


class SwiftCursor:
    """Where the reader is in a name; past its end there is IndexError."""

    __slots__ = ("at", "text")

    def __init__(self, text: str, at: int) -> None:
        """``at``: where reading begins."""
        self.text = text + END
        self.at = at

    def character(self) -> str:
        """The next character, which is then behind."""
        at = self.at
        self.at = at + 1
        return self.text[at]

    def choice(self, choices: Mapping[str, _Choice]) -> _Choice:
        """The one of ``choices`` that the next character selects."""
        choice = choices.get(self.character())
        if choice is None:
            raise NotUnderstoodError
        return choice

    def skip(self, expected: str) -> bool:
        """Whether the next characters are ``expected``; if so, they are then behind."""
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def expect(self, expected: str) -> None:
        """Pass ``expected``, which has to be next."""
        if not self.skip(expected):
            raise NotUnderstoodError


MAX_NODES = 8_000
"""Pushed for one name; the longest names in use make some hundreds."""
_MAX_DIGITS = 9


class Machine(SwiftCursor):
    """A name, how far it is read, and what has been read of it.

    Args:
        text: the name.
        at: where the prefix ends.
        labels_in_types: argument labels stand in the types of functions, as they did in Swift 4.0.
    """

    __slots__ = ("labels_in_types", "room", "stack", "substitutions", "words")

    def __init__(self, text: str, at: int, *, labels_in_types: bool = False) -> None:
        super().__init__(text, at)
        self.labels_in_types = labels_in_types
        self.stack: list[Node] = []
        self.substitutions: list[Node] = []
        self.words: list[str] = []
        self.room = MAX_NODES

    def digits(self) -> str:
        """The digits from here on; may be none."""
        text, start = self.text, self.at
        at = start
        while "0" <= text[at] <= "9":
            at += 1
        self.at = at
        return text[start:at]

    def natural(self) -> int | None:
        """The number that is next (``NATURAL``), or None."""
        digits = self.digits()
        if len(digits) > _MAX_DIGITS:
            raise NotUnderstoodError
        return int(digits) if digits else None

    def index(self) -> int:
        """A number and an underscore (``INDEX``): ``_`` is 0, ``0_`` is 1."""
        number = self.natural()
        self.expect("_")
        return 0 if number is None else number + 1

    def spend(self, nodes: int) -> None:
        """Count what a name makes beyond a node for each of its operators: there is a limit."""
        self.room -= nodes
        if self.room < 0:
            raise NotUnderstoodError

    def push_again(self, node: Node, times: int) -> None:
        """Push ``node`` some more times."""
        self.spend(times)
        self.stack.extend([node] * times)

    def substitutable(self, node: Node) -> Node:
        """``node``, which what follows may refer to (Mangling.rst, "Substitutions")."""
        self.substitutions.append(node)
        return node

    def pop(self, kind: Kind) -> Node | None:
        """The last node if it is a ``kind``."""
        stack = self.stack
        return stack.pop() if stack and stack[-1].kind is kind else None

    def need(self, kind: Kind) -> Node:
        """The last node, which has to be a ``kind``."""
        node = self.stack.pop()
        if node.kind is not kind:
            raise NotUnderstoodError
        return node

    def pop_any(self, kinds: Collection[Kind]) -> Node | None:
        """The last node if it is one of ``kinds``."""
        stack = self.stack
        return stack.pop() if stack and stack[-1].kind in kinds else None

    def need_any(self, kinds: Collection[Kind]) -> Node:
        """The last node, which has to be one of ``kinds``."""
        node = self.stack.pop()
        if node.kind not in kinds:
            raise NotUnderstoodError
        return node

    def need_type(self) -> Node:
        """The last node, which has to be a type: what the :attr:`Kind.TYPE` node wraps."""
        return self.need(Kind.TYPE).children[0]

    def pop_all(self, kind: Kind) -> list[Node]:
        """The last nodes that are of ``kind``, in the order in which they were pushed."""
        nodes = []
        while node := self.pop(kind):
            nodes.append(node)
        nodes.reverse()
        return nodes

    def first_element(self) -> bool:
        """Whether the element that is popped next is the first of its list."""
        return self.pop(Kind.FIRST_ELEMENT) is not None

    def types(self) -> list[Node]:
        """A list of types: the mark of an empty list, or types of which the first is marked."""
        if self.pop(Kind.EMPTY_LIST):
            return []
        types, first = [], False
        while not first:
            first = self.first_element()
            types.append(self.need(Kind.TYPE))
        types.reverse()
        return types

    def module(self) -> Node | None:
        """The last node as a module: an identifier, or a module known by a letter."""
        if name := self.pop(Kind.IDENTIFIER):
            return Node(Kind.MODULE, text=name.text)
        return self.pop(Kind.MODULE)

    def need_module(self) -> Node:
        """The last node as a module, which it has to be."""
        module = self.module()
        if module is None:
            raise NotUnderstoodError
        return module

    def context(self) -> Node:
        """The last node as what other declarations are in (Mangling.rst, "Entities")."""
        if module := self.module():
            return module
        node = self.stack.pop()
        if node.kind is Kind.TYPE:
            node = node.children[0]
        if node.kind not in CONTEXTS:
            raise NotUnderstoodError
        return node


Operator: TypeAlias = Callable[[Machine], Node]
"""Makes a node of what it reads and pops."""


def last_type(machine: Machine) -> Node:
    """The last node, which has to be a type."""
    return machine.need(Kind.TYPE)


def fixed(node: Node) -> Operator:
    """The operator that is always the same node."""
    return lambda _machine: node


def phrases(words: Mapping[str, str], operand: Operator) -> dict[str, Operator]:
    """The operators that print ``words``, by letter, about what ``operand`` pops."""

    def about(text: str) -> Operator:
        return lambda machine: phrase(text, operand(machine))

    return {letter: about(text) for letter, text in words.items()}


def wrapped(kind: Kind, children: list[Node], text: str = "") -> Node:
    """A type made of ``children``, wrapped as all types are."""
    return Node(Kind.TYPE, [Node(kind, children, text)])


def phrase(text: str, *children: Node) -> Node:
    """Words about ``children``: ``text`` has ``{0}`` where the first goes."""
    return Node(Kind.PHRASE, children, text)


def by_style(full: Node, simplified: Node) -> Node:
    """Return a node that is printed as ``full`` or as ``simplified``."""
    return Node(Kind.BY_STYLE, [full, simplified])
