"""Function types, and the labels of their arguments (Mangling.rst, "Types").

A function type's node has its annotations, its arguments and its result as children.

Types of functions as SIL has them: conventions for everything (Mangling.rst, "Types").
"""

from __future__ import annotations

from collections.abc import Callable

from machtrace.demangler.swift.generics import arguments_by_level
from machtrace.demangler.swift.machine import Machine
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError

DIFFERENTIABILITY = {"f": "(_forward)", "r": "(reverse)", "d": "", "l": "(_linear)"}
"""The text after ``@differentiable``, by letter."""

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


_CALLEES = {
    "y": "@callee_unowned",
    "g": "@callee_guaranteed",
    "x": "@callee_owned",
    "t": "@convention(thin)",
}
_FUNCTIONS = {
    "B": "block",
    "C": "c",
    "M": "method",
    "O": "objc_method",
    "K": "closure",
    "W": "witness_method",
}
_COROUTINES = {"A": "@yield_once", "I": "@yield_once_2", "G": "@yield_many"}
_PARAMETERS = {
    "i": "@in ",
    "c": "@in_constant ",
    "l": "@inout ",
    "b": "@inout_aliasable ",
    "n": "@in_guaranteed ",
    "X": "@in_cxx ",
    "x": "@owned ",
    "g": "@guaranteed ",
    "e": "@deallocating ",
    "y": "@unowned ",
    "v": "@pack_owned ",
    "p": "@pack_guaranteed ",
    "m": "@pack_inout ",
}
_RESULTS = {
    "r": "@out ",
    "o": "@owned ",
    "d": "@unowned ",
    "u": "@unowned_inner_pointer ",
    "a": "@autoreleased ",
    "k": "@pack_out ",
    "l": "@guaranteed_address ",
    "g": "@guaranteed ",
    "m": "@inout ",
}
_SEVERAL = 2
_OF_PARAMETERS = (
    ("T", "sending "),
    ("I", "isolated "),
    ("L", "sil_implicit_leading_param "),
)


def impl_function_type(machine: Machine) -> Node:
    """``I``: a function type of SIL; the types of parameters and results stand before it."""
    children = [*_substitutions(machine)]
    signature = machine.pop(Kind.GENERIC_SIGNATURE)
    if signature:
        machine.skip("P")
    children += _attributes(machine)
    if signature:
        children.append(Node(Kind.IMPL_ATTRIBUTE, [signature], "{0}"))
    parts = _parts(machine)
    types = [machine.need(Kind.TYPE) for _ in parts]
    types.reverse()
    for (kind, words), type_ in zip(parts, types, strict=True):
        children.append(Node(kind, [type_], words + "{0}"))
    return Node(Kind.TYPE, [Node(Kind.IMPL_FUNCTION, children)])


def _substitutions(machine: Machine) -> list[Node]:
    """The substituted type and its bindings (``s``, ``I``)."""
    substitutions = []
    if machine.skip("s"):
        types = Node(Kind.LIST, _replacement_types(machine))
        substitutions.append(
            Node(Kind.IMPL_SUBSTITUTED, [machine.need(Kind.GENERIC_SIGNATURE), types])
        )
    if machine.skip("I"):
        substitutions.append(Node(Kind.IMPL_BOUND, [Node(Kind.LIST, _replacement_types(machine))]))
    return substitutions


def _replacement_types(machine: Machine) -> list[Node]:
    levels, _ = arguments_by_level(machine)
    if len(levels) != 1:
        raise NotUnderstoodError
    return levels[0]


def _attributes(machine: Machine) -> list[Node]:
    """Conventions of the function itself, in the order in which they are mangled and printed."""
    words = []
    if machine.skip("e"):
        words.append("@escaping")
    if machine.skip("A"):
        words.append("@isolated(any)")
    if machine.text[machine.at] in DIFFERENTIABILITY:
        words.append("@differentiable" + DIFFERENTIABILITY[machine.character()])
    words.append(machine.choice(_CALLEES))
    attributes = [Node(Kind.IMPL_ATTRIBUTE, (), word) for word in words]
    attributes += _convention(machine)
    words = []
    if coroutine := _COROUTINES.get(machine.text[machine.at]):
        machine.at += 1
        words.append(coroutine)
    if machine.skip("h"):
        words.append("@Sendable")
    if machine.skip("H"):
        words.append("@async")
    attributes += [Node(Kind.IMPL_ATTRIBUTE, (), word) for word in words]
    if machine.skip("T"):
        attributes.append(Node(Kind.IMPL_SENDING_RESULT))
    return attributes


def _convention(machine: Machine) -> list[Node]:
    """The calling convention; ``z`` before C and blocks means that Clang's type follows."""
    of_clang = machine.text[machine.at] == "z" and machine.text[machine.at + 1] in "BC"
    machine.at += of_clang
    convention = _FUNCTIONS.get(machine.text[machine.at])
    if convention is None:
        return []
    machine.at += 1
    if not of_clang:
        return [Node(Kind.IMPL_ATTRIBUTE, (), f"@convention({convention})")]
    words = f'@convention({convention}, mangledCType: "{{0}}")'
    type_ = Node(Kind.CLANG_TYPE, text=clang_type(machine))
    return [Node(Kind.IMPL_ATTRIBUTE, [type_], words)]


def _parts(machine: Machine) -> list[tuple[Kind, str]]:
    """The attributes before the type of each parameter, result, yield and the error."""
    parts = []
    while words := _PARAMETERS.get(machine.text[machine.at]):
        machine.at += 1
        parts.append((Kind.IMPL_PARAMETER, words + _parameter_modifiers(machine)))
    while words := _RESULTS.get(machine.text[machine.at]):
        machine.at += 1
        parts.append((Kind.IMPL_RESULT, words + _derivation(machine)))
    while machine.skip("Y"):
        parts.append((Kind.IMPL_RESULT, "@yields " + machine.choice(_PARAMETERS)))
    if machine.skip("z"):
        parts.append((Kind.IMPL_RESULT, "@error " + machine.choice(_RESULTS)))
    machine.expect("_")
    return parts


def _derivation(machine: Machine) -> str:
    return "@noDerivative " if machine.skip("w") else ""


def _parameter_modifiers(machine: Machine) -> str:
    """The other modifiers of a parameter; ``swift-demangle`` prints nothing if there are more."""
    derivation = _derivation(machine)
    words = [word for letter, word in _OF_PARAMETERS if machine.skip(letter)]
    return derivation + "".join(words) if len(words) < _SEVERAL else ""
