"""The state that all parts of the C++ grammar share: position in the name, tables, limits.

The grammar is that of the Itanium C++ ABI, section 5.1.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from machtrace.demangler.itanium.nodes import Node, Precedence, UnreadableNameError, operand
from machtrace.frozen import dataclass

MAX_TEXT = 1 << 22
"""Characters of all pieces together that a name may take: substitutions that repeat themselves
would otherwise make a text of any length from a short name."""
_MAX_DEPTH = 128
"""Levels of types, names and expressions within one another."""
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_END = "\0"
_PLACEHOLDERS = frozenset({"auto", "decltype(auto)"})
_REFERENCE = re.compile(r"([PROrVK]*)S([0-9A-Z]*)_\Z")
"""A substitution, what points to it, and so on."""


Scope: TypeAlias = tuple[int, list[Node]]
Place: TypeAlias = tuple[tuple[list[Node], ...], int, bool, bool]


def _is_same(first: Scope | None, second: Scope | None) -> bool:
    if first is None or second is None:
        return first is second
    return first[0] == second[0] and first[1] is second[1]


def _is_place(first: Place, second: Place) -> bool:
    return (
        first[1:] == second[1:]
        and len(first[0]) == len(second[0])
        and all(own is other for own, other in zip(first[0], second[0], strict=True))
    )


@dataclass(frozen=True, slots=True)
class Numbering:
    """Which parts of a name later parts may refer to, where compilers differ."""

    nested_scopes: bool = False
    """Types in ``srN``: GCC before 13."""
    placeholders: bool = False
    """``auto`` and ``decltype(auto)`` as types: Apple's Clang, for some programs."""
    initialised: bool = True
    """Variables whose initialisers contain a lambda: not GCC before 13, nor Apple's Clang, for the
    same programs."""
    bases: bool = False
    """Classes whose constructors are inherited: GCC."""


class Cursor(ABC):
    """A place in a mangled name, and the tables that its later parts refer to."""

    def __init__(
        self, mangled: str, at: int, *, simplified: bool, numbering: Numbering | None = None
    ) -> None:
        if _END in mangled:
            raise UnreadableNameError
        self.name = mangled + _END + _END  # so that two characters can always be read
        self.at = at
        self.simplified = simplified
        """Whether parameters and template arguments are not shown."""
        self.substitutions: list[Node] = []
        self.template_levels: list[list[Node]] = []
        """The arguments that ``T_`` refers to, of the enclosing template and generic lambdas."""
        self.lambda_level = -1
        """The template level of a lambda's ``auto`` parameters; -1 outside of any."""
        self.takes_arguments = True
        """Whether template arguments after a type are the type's."""
        self.outer_levels: tuple[list[Node], ...] = ()
        """The arguments of the templates around a local entity."""
        self.own_levels: tuple[list[Node], ...] = ()
        """Those of the entity whose name is read, and of the classes around it."""
        self.levels_read: tuple[list[Node], ...] = ()
        """Those of the encoding that was read last, and of what is around it."""
        self.levels_rebuilt = _MAX_DEPTH
        """Template levels whose parameters are looked up again when a node is built again."""
        self.in_constraint = False
        """Whether all levels of template parameters are counted."""
        self.allows_forward = False
        """Whether template arguments may be referred to that follow."""
        self.refers_forward = False
        """Whether that happened in the name that is read."""
        self.numbering = numbering or Numbering()
        self.is_strict = False
        """Whether a reading is refused that no compiler would have meant, though it is one."""
        self.in_template_arguments = False
        """Whether a ``>`` would end the list."""
        self._rebuilt: dict[tuple[int, int], Node] = {}
        self._anew: dict[int, tuple[Place, Node]] = {}
        """Substitutions that were built again, by number, and where."""
        self.result_at = -1
        """Where the type begins that a function returns."""
        self.text_left = MAX_TEXT
        """Characters that all pieces together may still have."""
        self._depth = 0

    def fail(self) -> UnreadableNameError:
        """To be raised by who finds that the name is not of the grammar."""
        return UnreadableNameError(self.at)

    def spend(self, node: Node) -> Node:
        """``node``, its length taken off what there may be."""
        self.text_left -= len(node.left) + len(node.right) + 16
        if self.text_left < 0:
            raise UnreadableNameError
        return node

    def deeper(self) -> None:
        """One level more; :meth:`higher` is for when it ends well."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnreadableNameError

    def higher(self) -> None:
        """One level less."""
        self._depth -= 1

    def take(self, text: str) -> bool:
        """Whether ``text`` is next; if so, pass over it."""
        if self.name.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def expect(self, text: str) -> None:
        """Pass over ``text``, which must be next."""
        if not self.name.startswith(text, self.at):
            raise UnreadableNameError(self.at)
        self.at += len(text)

    def number(self, *, signed: bool = False) -> str:
        """Digits, after an ``n`` for a minus where one may be; the empty text where none are."""
        name, start = self.name, self.at
        at = start
        if signed and name[at] == "n":
            at += 1
        while "0" <= name[at] <= "9":
            at += 1
        self.at = at
        return name[start:at]

    def sequence_number(self) -> int:
        """``_`` is 0, ``0_`` 1 and so on, to the base of 36."""
        value = -1
        while (digit := _DIGITS.find(self.name[self.at])) >= 0:
            value = max(value, 0) * 36 + digit
            self.at += 1
            if value > len(self.name):
                raise UnreadableNameError
        self.expect("_")
        return value + 1

    def source_name(self) -> str:
        """``<length><identifier>``."""
        digits = self.number()
        if not digits or len(digits) > 9 or digits[0] == "0":  # noqa: PLR2004 (no longer name)
            raise UnreadableNameError
        end = self.at + int(digits)
        if end > len(self.name) - 2:
            raise UnreadableNameError
        found = self.name[self.at : end]
        self.at = end
        return "(anonymous namespace)" if found.startswith("_GLOBAL__N") else found

    def nodes_until(self, end: str, parse: Callable[[], Node]) -> list[Node]:
        """Parse nodes until ``end``, which is consumed."""
        found = []
        while not self.take(end):
            found.append(parse())
        return found

    def lift(self, make: Callable[..., Node], *parts: Node) -> Node:
        """Build a node from ``parts``; built again for each element of a pack in them."""
        node = self.spend(make(*parts))
        for part in parts:
            if part.make is not None and node.make is None:
                node.length = part.length
                node.make = lambda index: self.lift(make, *[part.at(index) for part in parts])
            if part.again is not None:
                if node.again is None:
                    node.again = lambda: self.lift(make, *map(self._part_rebuilt, parts))
                    node.scope = part.scope
                elif not _is_same(node.scope, part.scope):
                    node.scope = None
        return node

    def rebuilt(self, node: Node) -> Node:
        """Return a node with the template arguments of here."""
        self._rebuilt.clear()
        return self._part_rebuilt(node)

    def _part_rebuilt(self, node: Node) -> Node:
        if node.again is None:
            return node
        key = id(node), self.levels_rebuilt
        rebuilt = self._rebuilt.get(key)  # what a node has many times is built once
        if rebuilt is None:
            rebuilt = self._rebuilt[key] = node.again()
        return rebuilt

    def lift_list(self, make: Callable[[list[Node]], Node], parts: list[Node]) -> Node:
        """As :meth:`lift`, of a list."""
        return self.lift(lambda *nodes: make(list(nodes)), *parts)

    def expanded(self, pattern: Node) -> Node:
        """A pack expansion: ``pattern`` for each element, with commas."""
        if pattern.make is None:
            node = self.spend(Node(pattern.text + "..."))
        else:
            texts = []
            for index in range(pattern.length):
                text = operand(pattern.make(index), Precedence.COMMA)
                if text:
                    texts.append(text)
            node = self.spend(Node(", ".join(texts)))
        if pattern.again is not None:
            node.again = lambda: self.expanded(self._part_rebuilt(pattern))
            node.scope = pattern.scope
        return node

    @contextmanager
    def unrelated_templates(self) -> Iterator[None]:
        """Within, ``T_`` is not that of what is around."""
        around = self.template_levels, self.lambda_level, self.in_constraint, self.allows_forward
        self.template_levels, self.lambda_level = [], -1
        self.in_constraint = self.allows_forward = False
        yield
        self.template_levels, self.lambda_level, self.in_constraint, self.allows_forward = around

    @contextmanager
    def greater_than_is_plain(self) -> Iterator[None]:
        """Within parentheses, a ``>`` ends no template argument list."""
        before, self.in_template_arguments = self.in_template_arguments, False
        yield
        self.in_template_arguments = before

    def substitution(self) -> Node:
        """Parse the rest of ``S<number>_`` and return the substitution.

        What a parameter is in it is a parameter of that level and number, whatever its argument
        was where the substitution was written: another template may be read here.
        """
        start = self.at - 1
        index = self.sequence_number()
        if index >= len(self.substitutions):
            raise UnreadableNameError
        node = self.substitutions[index]
        if node.again is None:
            if self.is_strict and node.text in _PLACEHOLDERS and start != self.result_at:
                raise UnreadableNameError  # only a result has it: parameters are of templates
            return node
        levels = self.template_levels
        if node.scope is not None:
            level, arguments = node.scope
            if level < len(levels) and levels[level] is arguments:
                return node
        place = tuple(levels), self.lambda_level, self.in_constraint, self.allows_forward
        known = self._anew.get(index)
        if known is None or not _is_place(known[0], place):
            known = self._anew[index] = place, self.rebuilt(node)
        return known[1]

    # The parts of the grammar need one another; each is in a module of its own.

    def parameter_type(self) -> Node:
        """``<type>`` of a parameter."""
        start = self.at
        node = self.type()
        if self.is_strict:
            reference = _REFERENCE.match(self.name, start, self.at)
            if reference is not None:
                known = self.substitutions[int(reference[2], 36) + 1 if reference[2] else 0]
                if known.is_no_type or (known.is_qualified and not reference[1]):
                    raise self.fail()
        return node

    @abstractmethod
    def type(self) -> Node:
        """``<type>``."""

    @abstractmethod
    def expression(self) -> Node:
        """``<expression>``."""

    @abstractmethod
    def literal(self) -> Node:
        """``<expr-primary>``."""

    @abstractmethod
    def any_name(self) -> Node:
        """``<name>``, without its :class:`NameEnd`."""

    @abstractmethod
    def encoding(self) -> Node:
        """``<encoding>``."""

    @abstractmethod
    def template_arguments(self, *, remember: bool, around: tuple[list[Node], ...] = ()) -> Node:
        """``<template-args>``; ``remember``: they are what ``T_`` is from here on."""

    @abstractmethod
    def template_parameter(self) -> Node:
        """``<template-param>``."""

    @abstractmethod
    def decltype(self) -> Node:
        """``<decltype>``."""

    @abstractmethod
    def constraint(self) -> Node:
        """``<constraint-expression>``."""

    @abstractmethod
    def operator_symbol(self) -> Node:
        """``<operator-name>``."""

    @abstractmethod
    def unscoped_name_or_substitution(self) -> tuple[Node, bool]:
        """A name outside of any class, and whether it is a substitution alone."""
