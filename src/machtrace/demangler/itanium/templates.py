"""Template arguments and parameters, and lambdas, which have both: sections 5.1.7 and 5.1.8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from machtrace.demangler.itanium.cursor import Numbering
from machtrace.demangler.itanium.nodes import Node, joined, pack
from machtrace.demangler.itanium.types import Types

_DECLARATIONS = frozenset({"Ty", "Tp", "Tt", "Tn", "Tk"})
_FOLDED = "<...>"
_MAX_LEVELS = 64


class Templates(Types):
    """The rules of ``<template-args>``, ``<template-param>`` and unnamed types."""

    def __init__(
        self, mangled: str, at: int, *, simplified: bool, numbering: Numbering | None = None
    ) -> None:
        super().__init__(mangled, at, simplified=simplified, numbering=numbering)
        self._invented: Counter[str] = Counter()

    def template_arguments(self, *, remember: bool, around: tuple[list[Node], ...] = ()) -> Node:
        """``<template-args>``; ``remember``: they are what ``T_`` is from here on.

        ``around``: those of the templates that this one is a member of.
        """
        self.expect("I")
        level: list[Node] = []
        if remember:
            self.template_levels = [level]
            self.own_levels = (*around, level)
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
        node = self.lift_list(self._list, shown)
        node.levels = (*around, level)
        return node

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
            self._declaration([])
            return self._argument()
        node = self.type()
        return node, node

    def _element(self) -> tuple[Node, Node] | None:
        return None if self.take("E") else self._argument()

    def template_parameter(self) -> Node:
        """``<template-param>``: what it stands for."""
        start = self.at
        self.expect("T")
        level = 0
        if self.take("L"):
            level = self._index(self.number()) + 1
            self.expect("_")
        index = 0
        if not self.take("_"):
            index = self._index(self.number()) + 1
            self.expect("_")
        return self._parameter(level, index, self.name[start : self.at - 1])

    def _parameter(self, level: int, index: int, spelling: str) -> Node:
        levels = self.template_levels
        scope = (level, levels[level]) if level < len(levels) else None
        if self.allows_forward and level == 0:
            self.refers_forward = True
            node, scope = Node(""), None
        elif scope is not None and index < len(scope[1]):
            node = scope[1][index].copied()
        elif self.lambda_level == level and level <= len(levels):
            if scope is None:
                scope = (level, [])
                levels.append(scope[1])
            node = Node("auto")
        elif self.in_constraint:  # of a template whose arguments are not in the name
            node = Node(spelling)
        else:
            raise self.fail()

        def again() -> Node:
            if level >= self.levels_rebuilt:
                return node
            return self.spend(self._parameter(level, index, spelling))

        node.again, node.scope = again, scope
        return node

    def closed(self, node: Node, level: int = 0) -> Node:
        """Return ``node``, whose parameters from ``level`` on are settled."""
        again = node.again
        if again is None:
            return node
        node = node.copied()
        if level > 0:

            def rebuilt() -> Node:
                before, self.levels_rebuilt = self.levels_rebuilt, min(self.levels_rebuilt, level)
                built = self.closed(again(), level)
                self.levels_rebuilt = before
                return built

            node.again = rebuilt
        return node

    @contextmanager
    def _all_levels(self) -> Iterator[None]:
        """Within, parameters count the levels of all templates around; so constraints do."""
        levels, lambda_level = self.template_levels, self.lambda_level
        before = self.in_constraint
        if not before:
            around = (*self.outer_levels, *self.own_levels)
            is_own = bool(levels and around) and levels[0] is around[-1]
            self.template_levels = [*around, *(levels[1:] if is_own else levels)]
            if lambda_level >= 0:
                self.lambda_level += len(self.template_levels) - len(levels)
            self.in_constraint = True
        yield
        self.template_levels, self.lambda_level = levels, lambda_level
        self.in_constraint = before

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
            with self._all_levels():
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
            node = Node(f"'lambda{count}'")
            node.closure = declarator.closure
            return node
        node = self.lift(lambda of: Node(f"'lambda{count}'{of.text}"), declarator)
        node.closure = declarator.closure
        return node

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
                parameters.append(self.parameter_type())
                while self.name[self.at] not in "EQ":
                    parameters.append(self.parameter_type())
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
        node = self.closed(made, len(levels))
        if not declared and all(parameter.again is None for parameter in parameters):
            node.closure = [parameter.text for parameter in parameters]
        return node, count
