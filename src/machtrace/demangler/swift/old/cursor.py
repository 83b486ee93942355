"""Reading names of Swift 3 and earlier (``docs/ABI/OldMangling.rst`` of the Swift project).

Their grammar is prefix: what a node is stands before its parts. Objective-C still knows classes
and protocols of Swift by such names (``_TtC4main3Foo``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from machtrace.demangler.swift.identifiers import (
    CLANG_IMPORTER,
    OBJECTIVE_C,
    OLD_STANDARD_TYPES,
    STANDARD_LIBRARY,
    decode,
    operator_characters,
    readable,
)
from machtrace.demangler.swift.machine import SwiftCursor
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError

MAX_DEPTH = 64
"""Levels of types and contexts in each other; names in use have a dozen."""
_MAX_DIGITS = 64
_FIXITIES = {"i": " infix", "p": " prefix", "P": " postfix"}


class OldCursor(SwiftCursor, ABC):
    """A name, how far it is read, and what may be referred to."""

    __slots__ = ("depth", "substitutions")

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text, at)
        self.depth = 0
        self.substitutions: list[Node] = []

    @abstractmethod
    def type_(self) -> Node:
        """A type, wrapped."""

    @abstractmethod
    def context(self) -> Node:
        """The context of a declaration."""

    def peek(self) -> str:
        """The next character."""
        return self.text[self.at]

    def enter(self) -> None:
        """Go a level deeper."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotUnderstoodError

    def leave(self) -> None:
        """Come back up."""
        self.depth -= 1

    def natural(self) -> int:
        """The number that is next."""
        start = self.at
        while "0" <= self.text[self.at] <= "9":
            self.at += 1
        if not 0 < self.at - start <= _MAX_DIGITS:
            raise NotUnderstoodError
        return int(self.text[start : self.at])

    def index(self) -> int:
        """A number and an underscore: ``_`` is 0, ``0_`` is 1."""
        if self.skip("_"):
            return 0
        number = self.natural()
        self.expect("_")
        return number + 1

    def identifier(self) -> Node:
        """A name: a length and as many characters; ``X`` before it: Punycode, ``o``: operator."""
        punycoded = self.skip("X")
        fixity = None
        if self.skip("o"):
            fixity = _FIXITIES.get(self.character())
            if fixity is None:
                raise NotUnderstoodError
        length = self.natural()
        end = self.at + length
        if not length or end >= len(self.text):
            raise NotUnderstoodError
        name = self.text[self.at : end]
        self.at = end
        name = decode(name) if punycoded else readable(name)
        if fixity is None:
            return Node(Kind.IDENTIFIER, text=name)
        return Node(Kind.OPERATOR, text=operator_characters(name) + fixity)

    def declaration_name(self) -> Node:
        """A name, in a function (``L``) or in a file (``P``)."""
        if self.skip("L"):
            number = self.index()
            return Node(Kind.LOCAL_NAME, [self.identifier()], index=number)
        if self.skip("P"):
            discriminator = self.identifier()
            return Node(Kind.PRIVATE_NAME, [self.identifier()], discriminator.text)
        return self.identifier()

    def substitutable(self, node: Node) -> Node:
        """``node``, which what follows may refer to."""
        self.substitutions.append(node)
        return node

    def substitution(self) -> Node:
        """After ``S``: what was read before, or a well-known module or type."""
        if self.skip("o"):
            return Node(Kind.MODULE, text=OBJECTIVE_C)
        if self.skip("C"):
            return Node(Kind.MODULE, text=CLANG_IMPORTER)
        if node := OLD_STANDARD_TYPES.get(self.peek()):
            self.at += 1
            return node
        return self.substitutions[self.index()]

    def module(self) -> Node:
        """A module by name, or by reference."""
        if self.skip("s"):
            return Node(Kind.MODULE, text=STANDARD_LIBRARY)
        if self.skip("S"):
            module = self.substitution()
            if module.kind is not Kind.MODULE:
                raise NotUnderstoodError
            return module
        name = self.identifier()
        if name.kind is not Kind.IDENTIFIER:
            raise NotUnderstoodError
        return self.substitutable(Node(Kind.MODULE, text=name.text))

    def declaration(self, kind: Kind) -> Node:
        """A declared type: its context and its name."""
        return self.declaration_in(kind, self.context())

    def declaration_in(self, kind: Kind, context: Node) -> Node:
        """A declared type of which the context is read."""
        return self.substitutable(Node(kind, [context, self.declaration_name()]))

    def protocol(self) -> Node:
        """A protocol, wrapped: by reference, in a module by reference, or in full."""
        return Node(Kind.TYPE, [self._protocol()])

    def _protocol(self) -> Node:
        if self.skip("S"):
            substituted = self.substitution()
            if substituted.kind is Kind.PROTOCOL:
                return substituted
            if substituted.kind is not Kind.MODULE:
                raise NotUnderstoodError
            return self.declaration_in(Kind.PROTOCOL, substituted)
        if self.skip("s"):
            module = Node(Kind.MODULE, text=STANDARD_LIBRARY)
            return self.declaration_in(Kind.PROTOCOL, module)
        return self.declaration(Kind.PROTOCOL)
