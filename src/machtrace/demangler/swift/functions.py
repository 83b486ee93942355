"""Function types, and the labels of their arguments (Mangling.rst, "Types").

A function type's node has its annotations, its arguments and its result as children.
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.machine import Machine
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError

DIFFERENTIABILITY = {"f": "(_forward)", "r": "(reverse)", "d": "", "l": "(_linear)"}
"""What is written behind ``@differentiable``, by letter."""

_ANNOTATIONS = (
    Kind.SENDING_RESULT,
    Kind.ISOLATION,
    Kind.DIFFERENTIABLE,
    Kind.THROWS,
    Kind.SENDABLE,
    Kind.ASYNC,
)
"""In the reverse of their order in the mangled name."""
_LABELLED = frozenset({Kind.FUNCTION_TYPE})
_LABELS = frozenset({Kind.IDENTIFIER, Kind.FIRST_ELEMENT})


def function_type(kind: Kind, *, text: str = "", clang: bool = False) -> Callable[[Machine], Node]:
    """The operator of a kind of function types; ``clang`` where Clang's type follows."""

    def operator(machine: Machine) -> Node:
        children = [_clang_type(machine)] if clang else []
        return popped_function_type(machine, kind, children, text)

    return operator


def popped_function_type(
    machine: Machine, kind: Kind, children: list[Node], text: str = ""
) -> Node:
    """The last nodes as a function type."""
    children.extend(node for one in _ANNOTATIONS if (node := machine.pop(one)))
    arguments = _popped_list(machine)
    result = _popped_list(machine)
    children.append(Node(Kind.ARGUMENTS, [arguments]))
    children.append(Node(Kind.RESULT, [result]))
    return Node(Kind.TYPE, [Node(kind, children, text)])


_NOTHING = Node(Kind.TYPE, [Node(Kind.TUPLE)])


def _popped_list(machine: Machine) -> Node:
    if machine.pop(Kind.EMPTY_LIST):
        return _NOTHING
    return machine.need(Kind.TYPE)


def _clang_type(machine: Machine) -> Node:
    return Node(Kind.CLANG_TYPE, text=clang_type(machine))


def clang_type(machine: Machine) -> str:
    """A length and the C++ mangling of a type."""
    length = machine.natural()
    end = machine.at + (length or 0)
    if not length or end >= len(machine.text):
        raise NotUnderstoodError
    found = machine.text[machine.at : end]
    machine.at = end
    return found


def annotation(machine: Machine) -> Node:
    """``Y``: annotations of function types and of parameters."""
    c = machine.character()
    if found := _FIXED.get(c):
        return found
    if word := _WORDS.get(c):
        return Node(Kind.TYPE, [Node(Kind.MODIFIED, [machine.need(Kind.TYPE)], word)])
    if c == "c":
        return Node(Kind.ISOLATION, [machine.need(Kind.TYPE)], "@{0} ")
    if c == "K":
        return Node(Kind.THROWS, [machine.need(Kind.TYPE)], " throws({0})")
    if c == "j":
        words = DIFFERENTIABILITY.get(machine.character())
        if words is not None:
            return Node(Kind.DIFFERENTIABLE, (), f"@differentiable{words} ")
    raise NotUnderstoodError


_FIXED = {
    "a": Node(Kind.ASYNC, (), " async"),
    "A": Node(Kind.ISOLATION, (), "@isolated(any) "),
    "b": Node(Kind.SENDABLE, (), "@Sendable "),
    "C": Node(Kind.ISOLATION, (), "nonisolated(nonsending) "),
    "T": Node(Kind.SENDING_RESULT, (), "sending "),
}
_WORDS = {
    "i": "isolated ",
    "k": "@noDerivative ",
    "t": "_const ",
    "g": "@const ",
    "u": "sending ",
}


def popped_labels(machine: Machine, type_: Node | None) -> Node | None:
    """The labels of the arguments of a function of this type; None where it has no arguments."""
    if not machine.labels_in_types and machine.pop(Kind.EMPTY_LIST):
        return Node(Kind.LABELS)
    arguments = _arguments(type_)
    if arguments is None:
        return None
    is_tuple = arguments.kind is Kind.TUPLE
    count = len(arguments.children) if is_tuple else 1
    if not count:
        return None
    if machine.labels_in_types:
        labels = _taken_labels(arguments) if is_tuple else []
    else:
        labels = [machine.need_any(_LABELS) for _ in range(count)]
        labels.reverse()
    if all(label.kind is Kind.FIRST_ELEMENT for label in labels):
        labels = []
    return Node(Kind.LABELS, labels)


def _arguments(type_: Node | None) -> Node | None:
    """The type of the arguments, where this is a function type."""
    if type_ is None:
        return None
    function = type_.children[0]
    if function.kind is Kind.DEPENDENT_GENERIC_TYPE:
        function = function.children[1].children[0]
    if function.kind not in _LABELLED:
        return None
    return function.children[-2].children[0].children[0]


def _taken_labels(arguments: Node) -> list[Node]:
    """Labels that were mangled with the types, which then have them no more."""
    labels = []
    for element in arguments.children:
        labels.append(
            Node(Kind.IDENTIFIER, text=element.text) if element.text else Node(Kind.FIRST_ELEMENT)
        )
        element.text = ""
    return labels
