"""Template arguments and parameters, and lambdas, which have both: sections 5.1.7 and 5.1.8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from machtrace.demangler.itanium.nodes import Node, joined, pack
from machtrace.demangler.itanium.types import Types

_DECLARATIONS = frozenset({"Ty", "Tp", "Tt", "Tn", "Tk"})
_FOLDED = "<...>"
_MAX_LEVELS = 64


class Templates(Types):
    """The rules of ``<template-args>``, ``<template-param>`` and unnamed types."""

    def __init__(self, mangled: str, at: int, *, simplified: bool) -> None:
        super().__init__(mangled, at, simplified=simplified)
        self._invented: Counter[str] = Counter()

    def template_arguments(self, *, remember: bool) -> Node:
        """``<template-args>``; ``remember``: they are what ``T_`` is from here on."""
        self.expect("I")
        level: list[Node] = []
        if remember:
            self.template_levels = [level]
        shown: list[Node] = []
        before, self.in_template_arguments = self.in_template_arguments, True
        takes, self.takes_arguments = self.takes_arguments, True
        while not self.take("E"):
            argument, entry = self._argument()
            shown.append(argument)
            level.append(entry)
            if self.take("Q"):
                self.constraint()
                self.expect("E")
                break
        self.in_template_arguments, self.takes_arguments = before, takes
        return self.lift_list(self._list, shown)

    def _list(self, shown: list[Node]) -> Node:
        text = joined(shown)
        return Node(_FOLDED if self.simplified and text else f"<{text}>")

    def _argument(self) -> tuple[Node, Node]:
        """A template argument, and what a parameter stands for that it is given to."""
        letter = self.name[self.at]
        if letter == "X":
            self.at += 1
            node = self.expression()
            self.expect("E")
            return node, node
        if letter in "JI":  # GCC before 4.5, and libstdc++ still, write I for a pack
            self.deeper()
            self.at += 1
            elements = [one for one, _ in iter(self._element, None)]
            self.higher()
            shown = self.lift_list(lambda nodes: Node(joined(nodes)), elements)
            return shown, pack(elements)
        if letter == "L":
            node = self.literal()
            return node, node
        if self.name[self.at : self.at + 2] in _DECLARATIONS:
            with self._scope():
                self._declaration([])
            return self._argument()
        node = self.type()
        return node, node

    def _element(self) -> tuple[Node, Node] | None:
        return None if self.take("E") else self._argument()

    def template_parameter(self) -> Node:
        """``<template-param>``: what it stands for."""
        self.expect("T")
        level = 0
        if self.take("L"):
            level = self._index(self.number()) + 1
            self.expect("_")
        index = 0
        if not self.take("_"):
            index = self._index(self.number()) + 1
            self.expect("_")
        if self.allows_forward and level == 0:
            key = len(self.forward)
            self.forward[key] = ""
            self.forward_indices[key] = index
            return Node(f"\1{key}\1")
        levels = self.template_levels
        if level < len(levels) and index < len(levels[level]):
            return levels[level][index]
        if self.lambda_level == level and level <= len(levels):
            if level == len(levels):
                levels.append([])
            return Node("auto")
        raise self.fail()

    def _index(self, digits: str) -> int:
        if not digits or len(digits) > 6:  # noqa: PLR2004 (more than names have characters)
            raise self.fail()
        return int(digits)

    @contextmanager
    def _scope(self) -> Iterator[list[Node]]:
        """A level of template parameters more, within."""
        before = list(self.template_levels)
        if len(before) > _MAX_LEVELS:
            raise self.fail()
        level: list[Node] = []
        self.template_levels = [*before, level]
        yield level
        self.template_levels = before

    def _declarations(self, level: list[Node]) -> list[Node]:
        found = []
        while self.name[self.at : self.at + 2] in _DECLARATIONS:
            found.append(self._declaration(level))
        return found

    def _declaration(self, level: list[Node]) -> Node:
        """``<template-param-decl>``: left of it what it is, right its name."""
        kind = self.name[self.at : self.at + 2]
        self.at += 2
        if kind == "Ty":
            return Node("typename ", self._invent("$T", level))
        if kind == "Tk":
            concept = self.any_name()
            return Node(concept.text + " ", self._invent("$T", level))
        if kind == "Tn":
            name = self._invent("$N", level)
            type_ = self.type()
            space = "" if type_.right else " "
            return Node(type_.left + space, name + type_.right)
        if kind == "Tt":
            name = self._invent("$TT", level)
            with self._scope() as inner:
                parameters = self._declarations(inner)
                if self.take("Q"):
                    self.constraint()
            self.expect("E")
            return Node(f"template<{joined(parameters)}> typename ", name)
        if kind == "Tp":
            self.deeper()
            inner_one = self._declaration(level)
            self.higher()
            return Node(inner_one.left + "...", inner_one.right)
        raise self.fail()

    def _invent(self, kind: str, level: list[Node]) -> str:
        number = self._invented[kind]
        self._invented[kind] += 1
        name = kind + (str(number - 1) if number else "")
        level.append(Node(name))
        return name

    def unnamed_type(self, *, clear: bool = False) -> Node:
        """``<unnamed-type-name>`` and ``<closure-type-name>``."""
        if clear:
            self.template_levels = []
        if self.take("Ut"):
            count = self.number()
            self.expect("_")
            return Node(f"'unnamed{count}'")
        if self.take("Ub"):
            self.number()
            self.expect("_")
            return Node("'block-literal'")
        self.expect("Ul")
        declarator, count = self.closure_declarator()
        if self.simplified:
            return Node(f"'lambda{count}'")
        return self.lift(lambda of: Node(f"'lambda{count}'{of.text}"), declarator)

    def closure_declarator(self) -> tuple[Node, str]:
        """A lambda's template and other parameters, behind the ``Ul``; and which one it is."""
        before, levels = self.lambda_level, self.template_levels
        self.lambda_level = len(levels)
        takes, self.takes_arguments = self.takes_arguments, True
        with self._scope() as level, self.greater_than_is_plain():
            declared = self._declarations(level)
            if not declared:
                self.template_levels = list(levels)
            first = self.constraint() if self.take("Q") else None
            parameters: list[Node] = []
            if not self.take("v"):
                parameters.append(self.type())
                while self.name[self.at] not in "EQ":
                    parameters.append(self.type())
            second = self.constraint() if self.take("Q") else None
            self.expect("E")
        self.lambda_level, self.takes_arguments = before, takes
        count = self.number()
        self.expect("_")
        head = f"<{joined(declared)}>" if declared else ""
        if first is not None:
            head += f" requires {first.text} "
        tail = "" if second is None else f" requires {second.text}"
        made = self.lift_list(lambda nodes: Node(f"{head}({joined(nodes)}){tail}"), parameters)
        return made, count
