"""Expressions in mangled C++ names: the Itanium C++ ABI, section 5.1.6.

With ``requires`` expressions, and names that depend on template arguments:
``<unresolved-name>``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from machtrace.demangler.itanium.cursor import Cursor
from machtrace.demangler.itanium.literals import Literals, braced_text
from machtrace.demangler.itanium.nodes import (
    OPERATORS,
    Form,
    Node,
    Operator,
    Precedence,
    joined,
    operand,
)
from machtrace.demangler.itanium.types import indexed


def parse_requirements(cursor: Cursor) -> Node:
    """``rQ <parameter>+ _ <requirement>+ E`` or ``rq <requirement>+ E``, behind its letters."""
    parameters = []
    if cursor.name[cursor.at - 1] == "Q":
        parameters = cursor.nodes_until("_", cursor.type)
    requirements = cursor.nodes_until("E", lambda: _requirement(cursor))
    if not requirements:
        raise cursor.fail()
    count = len(parameters)

    def made(*nodes: Node) -> Node:
        head = f" ({joined(list(nodes[:count]))})" if count else ""
        return Node(f"requires{head} {{{''.join(node.text for node in nodes[count:])} }}")

    return cursor.lift(made, *parameters, *requirements)


def _requirement(cursor: Cursor) -> Node:
    if cursor.take("X"):
        expression = cursor.expression()
        is_noexcept = cursor.take("N")
        constraint = [cursor.any_name()] if cursor.take("R") else []

        def simple(expression: Node, *constraint: Node) -> Node:
            compound = is_noexcept or constraint
            text = f" {{{expression.text}}}" if compound else f" {expression.text}"
            text += " noexcept" if is_noexcept else ""
            return Node(text + "".join(f" -> {one.text}" for one in constraint) + ";")

        return cursor.lift(simple, expression, *constraint)
    if cursor.take("T"):
        return cursor.lift(lambda of: Node(f" typename {of.text};"), cursor.type())
    cursor.expect("Q")
    return cursor.lift(lambda of: Node(f" requires {of.text};"), cursor.constraint())


def parse_unresolved_name(cursor: Cursor, *, is_global: bool) -> Node:
    """``<unresolved-name>``; ``is_global``: a ``gs`` was before it."""
    if cursor.numbering.nested_scopes and cursor.name.startswith("srN", cursor.at):
        cursor.at += 2
        scope = cursor.any_name()
        cursor.substitutions.append(scope)
        return _within(cursor, scope, _base_name(cursor))
    if cursor.take("srN"):
        scope = _unresolved_type(cursor)
        while not cursor.take("E"):
            scope = _within(cursor, scope, _simple_identifier(cursor))
        return _within(cursor, scope, _base_name(cursor))
    if not cursor.take("sr"):
        return _from_root(cursor, _base_name(cursor), is_global=is_global)
    if not cursor.name[cursor.at].isdigit():
        scope = _unresolved_type(cursor)
        return _within(cursor, scope, _base_name(cursor))
    scope = _from_root(cursor, _simple_identifier(cursor), is_global=is_global)
    while not cursor.take("E"):
        scope = _within(cursor, scope, _simple_identifier(cursor))
    return _within(cursor, scope, _base_name(cursor))


def _from_root(cursor: Cursor, name: Node, *, is_global: bool) -> Node:
    return cursor.lift(lambda of: Node(f"::{of.text}"), name) if is_global else name


def _within(cursor: Cursor, scope: Node, name: Node) -> Node:
    return cursor.lift(lambda of, one: Node(f"{of.text}::{one.text}"), scope, name)


def _arguments_after(cursor: Cursor, name: Node) -> Node:
    if cursor.name[cursor.at] != "I":
        return name
    arguments = cursor.template_arguments(remember=False)
    return cursor.lift(lambda of, some: Node(of.text + some.text), name, arguments)


def _unresolved_type(cursor: Cursor) -> Node:
    """``<unresolved-type>``, with arguments; then it is a candidate for substitution, too.

    LLVM 19 misses that candidate. GCC writes any type here, with ``St`` before standard ones.
    """
    template = _template_or_type(cursor)
    node = _arguments_after(cursor, template)
    if node is not template:
        cursor.substitutions.append(node)
    return node


def _template_or_type(cursor: Cursor) -> Node:
    letter = cursor.name[cursor.at]
    if letter == "T":
        node = cursor.template_parameter()
    elif letter == "D":
        node = cursor.decltype()
    elif cursor.name.startswith("St", cursor.at):
        node = cursor.unscoped_name_or_substitution()[0]
    else:
        return cursor.unscoped_name_or_substitution()[0]
    cursor.substitutions.append(node)
    return node


def _simple_identifier(cursor: Cursor) -> Node:
    return _arguments_after(cursor, Node(cursor.source_name()))


def _base_name(cursor: Cursor) -> Node:
    if cursor.name[cursor.at].isdigit():
        return _simple_identifier(cursor)
    if cursor.take("dn"):
        if cursor.name[cursor.at].isdigit():
            of = _simple_identifier(cursor)
        else:
            of = _unresolved_type(cursor)
        return cursor.lift(lambda one: Node(f"~{one.text}"), of)
    cursor.take("on")
    return _arguments_after(cursor, cursor.operator_symbol())


class Expressions(Literals):
    """The rules of ``<expression>``."""

    def expression(self) -> Node:
        """``<expression>``."""
        self.deeper()
        is_global = self.take("gs")
        two = self.name[self.at : self.at + 2]
        operator = OPERATORS.get(two)
        if operator is not None:
            self.at += 2
            node = self._operation(operator, is_global=is_global)
        elif two[0] == "L":
            node = self.literal()
        elif two[0] == "T":
            node = self.template_parameter()
        elif two == "fp" or (two == "fL" and self.name[self.at + 2].isdigit()):
            node = self._function_parameter()
        elif (rule := self._EXPRESSION_RULES.get(two)) is not None:
            self.at += 2
            with self.greater_than_is_plain():
                node = rule(self)
        elif two[0] == "u":
            node = self._vendor()
        else:
            node = parse_unresolved_name(self, is_global=is_global)
        self.higher()
        return node

    def constraint(self) -> Node:
        """``<constraint-expression>``."""
        with self.greater_than_is_plain(), self._all_levels():
            return self.expression()

    def _several(self, end: str = "E") -> list[Node]:
        with self.greater_than_is_plain():
            return self.nodes_until(end, self.expression)

    def _inner(self) -> Node:
        with self.greater_than_is_plain():
            return self.expression()

    def _operation(  # noqa: PLR0911 (one arm a form)
        self, operator: Operator, *, is_global: bool
    ) -> Node:
        form, level, symbol = operator.form, operator.precedence, operator.symbol
        if form is Form.BINARY:
            return self._binary(operator)
        if form is Form.PREFIX or (form is Form.POSTFIX and self.take("_")):
            return self._made(lambda a: symbol + operand(a, Precedence.UNARY), level, self._one())
        if form is Form.POSTFIX:
            of = self._one()
            return self._made(lambda a: operand(a, level, strictly=True) + symbol, level, of)
        if form is Form.SUBSCRIPT:
            array, index = self._one(), self._inner()
            return self._made(lambda a, i: f"{operand(a, level)}[{i.text}]", level, array, index)
        if form is Form.MEMBER:
            of, member = self._one(), self._one()
            return self._made(
                lambda a, m: operand(a, level, strictly=True) + symbol + operand(m, level),
                level,
                of,
                member,
            )
        if form is Form.NAMED_CAST:
            to, value = self._type_in_brackets(), self._inner()
            return self._made(lambda t, v: f"{symbol}<{t.text}>({v.text})", level, to, value)
        if form is Form.OF_TYPE or form is Form.OF_EXPRESSION:
            with self.greater_than_is_plain():
                of = self.type() if form is Form.OF_TYPE else self.expression()
            return self._made(lambda a: f"{symbol} ({a.text})", level, of)
        if form is Form.CONDITIONAL:
            parts = (self._one(), self._one(), self._one())
            return self._made(_conditional, level, *parts)
        return self._call_like(operator, is_global=is_global)

    def _call_like(self, operator: Operator, *, is_global: bool) -> Node:
        form, level, symbol = operator.form, operator.precedence, operator.symbol
        scope = "::" if is_global else ""
        if form is Form.NEW:
            return self._new(scope + symbol, level)
        if form is Form.DELETE:
            return self._made(lambda a: f"{scope}{symbol} {a.text}", level, self._one())
        if form is Form.CONVERSION:
            return self._conversion_to(level)
        if form is Form.NAME_ONLY:
            raise self.fail()
        callee = self._one()
        parenthesised = form is Form.PARENTHESISED_CALL

        def called(of: Node, *arguments: Node) -> str:
            function = f"({of.text})" if parenthesised else of.text
            return f"{function}({joined(list(arguments))})"

        return self._made(called, level, callee, *self._several())

    def _one(self) -> Node:
        return self.expression()

    def _type_in_brackets(self) -> Node:
        before, self.in_template_arguments = self.in_template_arguments, True
        node = self.type()
        self.in_template_arguments = before
        return node

    def _made(self, make: Callable[..., str], level: int, *parts: Node) -> Node:
        def node(*nodes: Node) -> Node:
            made = Node(make(*nodes))
            made.precedence = level
            return made

        return self.lift(node, *parts)

    def _binary(self, operator: Operator) -> Node:
        level, symbol = operator.precedence, operator.symbol
        left, right = self._one(), self._one()
        enclosed = self.in_template_arguments and symbol in {">", ">>"}
        assigns = level == Precedence.ASSIGN
        space = "" if symbol == "," else " "

        def made(a: Node, b: Node) -> str:
            limit = Precedence.OR_IF if assigns else level
            first = operand(a, limit, strictly=not assigns)
            text = f"{first}{space}{symbol} {operand(b, level, strictly=assigns)}"
            return f"({text})" if enclosed else text

        return self._made(made, Precedence.PRIMARY if enclosed else level, left, right)

    def _new(self, symbol: str, level: int) -> Node:
        placement = self._several("_")
        with self.greater_than_is_plain():
            of = self.type()
        initialised = self.take("pi")
        if initialised:
            values = self._several()
        elif self.take("il"):
            initialised, values = True, self._several()
        else:
            self.expect("E")
            values = []
        count = len(placement)

        def made(of: Node, *nodes: Node) -> str:
            where = f"({joined(list(nodes[:count]))})" if count else ""
            arguments = f"({joined(list(nodes[count:]))})" if initialised else ""
            return f"{symbol}{where} {of.text}{arguments}"

        return self._made(made, level, of, *placement, *values)

    def _conversion_to(self, level: int) -> Node:
        takes, self.takes_arguments = self.takes_arguments, False
        to = self.type()
        self.takes_arguments = takes
        values = self._several() if self.take("_") else [self._inner()]
        return self._made(lambda t, *v: f"({t.text})({joined(list(v))})", level, to, *values)

    def _function_parameter(self) -> Node:
        if self.take("fpT"):
            return Node("this")
        if self.take("fL"):
            self.number()
            self.expect("p")
        else:
            self.expect("fp")
        self.qualifiers()
        number = self.number()
        self.expect("_")
        return Node("fp" + number)

    def _vendor(self) -> Node:
        self.expect("u")
        name = self.source_name()
        if name == "__uuidof":
            if self.take("t"):
                return self._made(lambda a: f"{name}({a.text})", 0, self.type())
            if self.take("z"):
                return self._made(lambda a: f"{name}({a.text})", 0, self.expression())
        with self.greater_than_is_plain():
            arguments = self.nodes_until("E", lambda: self._argument()[0])
        return self._made(lambda *a: f"{name}({joined(list(a))})", 0, *arguments)

    def _fold(self) -> Node:
        kind = self.name[self.at - 1]
        operator = OPERATORS.get(self.name[self.at : self.at + 2])
        if operator is None or operator.form not in {Form.BINARY, Form.MEMBER}:
            raise self.fail()
        self.at += 2
        is_left = kind in "lL"
        first = self._one()
        second = self._one() if kind in "LR" else None
        packed, start = (second, first) if kind == "L" and second else (first, second)
        sign = f" {operator.symbol} "

        def made(expansion: Node, *starts: Node) -> str:
            elements = f"({expansion.text})"
            start = operand(starts[0], Precedence.CAST, strictly=True) if starts else ""
            if is_left:
                return f"({start}{sign if start else ''}...{sign}{elements})"
            return f"({elements}{sign}...{sign if start else ''}{start})"

        expansion = self.expanded(packed)
        return self._made(made, 0, expansion, *([] if start is None else [start]))

    def _braced(self) -> Node:
        """``il``: a list without its type."""
        items = self.nodes_until("E", self.braced_expression)
        return self._made(lambda *a: f"{{{joined(list(a))}}}", 0, *items)

    def _braced_of_type(self) -> Node:
        of = self.type()
        items = self.nodes_until("E", self.braced_expression)
        return self._made(braced_text, 0, of, *items)

    def braced_expression(self) -> Node:
        """``<braced-expression>``: an expression, or one with a designator."""
        self.deeper()
        if self.take("di"):
            field = Node("." + self.source_name())
            node = self._designated(lambda f: f.text, field)
        elif self.take("dx"):
            node = self._designated(lambda i: f"[{i.text}]", self.expression())
        elif self.take("dX"):
            first = self.expression()
            node = self._designated(
                lambda a, b: f"[{a.text} ... {b.text}]", first, self.expression()
            )
        else:
            node = self.expression()
        self.higher()
        return node

    def _designated(self, make: Callable[..., str], *parts: Node) -> Node:
        value = self.braced_expression()

        def made(value: Node, *parts: Node) -> str:
            equals = "" if value.text[:1] in {".", "["} else " = "
            return make(*parts) + equals + value.text

        return self._made(made, 0, value, *parts)

    def _is_noexcept(self) -> Node:
        return self._made(lambda a: f"noexcept ({a.text})", Precedence.UNARY, self.expression())

    def _throw(self) -> Node:
        return self._made(lambda a: f"throw {a.text}", 0, self.expression())

    def _rethrow(self) -> Node:
        return Node("throw")

    def _pack_expansion_of(self) -> Node:
        return self.expanded(self.expression())

    def _pack_index_of(self) -> Node:
        return self.lift(indexed, self.expanded(self.expression()), self.expression())

    def _pack_size(self) -> Node:
        is_template = self.name[self.at] == "T"
        of = self.template_parameter() if is_template else self._function_parameter()
        return self._made(lambda a: f"sizeof...({a.text})", 0, self.expanded(of))

    def _arguments_size(self) -> Node:
        arguments = self.nodes_until("E", lambda: self._argument()[0])
        return self._made(lambda *a: f"sizeof... ({joined(list(a))})", 0, *arguments)

    def _member_pointer_conversion(self) -> Node:
        to, value = self.type(), self.expression()
        self.number(signed=True)
        self.expect("E")
        return self._made(lambda t, v: f"({t.text})({v.text})", Precedence.CAST, to, value)

    def _subobject(self) -> Node:
        of_type, of = self.type(), self.expression()
        offset = self.number(signed=True).replace("n", "-") or "0"
        while self.take("_"):
            self.number()
        self.take("p")
        self.expect("E")
        return self._made(lambda a, t: f"{a.text}.<{t.text} at offset {offset}>", 0, of, of_type)

    def _requires(self) -> Node:
        return parse_requirements(self)

    _EXPRESSION_RULES: ClassVar[dict[str, Callable[[Expressions], Node]]] = {
        "fl": _fold,
        "fr": _fold,
        "fL": _fold,
        "fR": _fold,
        "il": _braced,
        "tl": _braced_of_type,
        "nx": _is_noexcept,
        "tw": _throw,
        "tr": _rethrow,
        "sp": _pack_expansion_of,
        "sZ": _pack_size,
        "sP": _arguments_size,
        "sy": _pack_index_of,
        "mc": _member_pointer_conversion,
        "so": _subobject,
        "rq": _requires,
        "rQ": _requires,
    }


def _conditional(condition: Node, yes: Node, no: Node) -> str:
    first = operand(condition, Precedence.CONDITIONAL)
    second = operand(yes, Precedence.DEFAULT)
    return f"{first} ? {second} : {operand(no, Precedence.ASSIGN, strictly=True)}"
