"""Types of functions as SIL has them: conventions for everything (Mangling.rst, "Types")."""

from __future__ import annotations

from machtrace.demangler.swift.swift_bound_generics import arguments_by_level
from machtrace.demangler.swift.functions import DIFFERENTIABILITY, clang_type
from machtrace.demangler.swift.machine import Machine
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError

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
    """What the type is made of, and for which types (``s``, ``I``)."""
    found = []
    if machine.skip("s"):
        types = Node(Kind.LIST, _replacement_types(machine))
        found.append(Node(Kind.IMPL_SUBSTITUTED, [machine.need(Kind.GENERIC_SIGNATURE), types]))
    if machine.skip("I"):
        found.append(Node(Kind.IMPL_BOUND, [Node(Kind.LIST, _replacement_types(machine))]))
    return found


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
    callee = _CALLEES.get(machine.character())
    if callee is None:
        raise NotUnderstoodError
    words.append(callee)
    found = [Node(Kind.IMPL_ATTRIBUTE, (), word) for word in words]
    found += _convention(machine)
    words = []
    if coroutine := _COROUTINES.get(machine.text[machine.at]):
        machine.at += 1
        words.append(coroutine)
    if machine.skip("h"):
        words.append("@Sendable")
    if machine.skip("H"):
        words.append("@async")
    found += [Node(Kind.IMPL_ATTRIBUTE, (), word) for word in words]
    if machine.skip("T"):
        found.append(Node(Kind.IMPL_SENDING_RESULT))
    return found


def _convention(machine: Machine) -> list[Node]:
    """How the function is called; ``z`` before C and blocks says that Clang's type follows."""
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
    """Parameters, results, yields and the error: what is said before the type of each."""
    found = []
    while words := _PARAMETERS.get(machine.text[machine.at]):
        machine.at += 1
        found.append((Kind.IMPL_PARAMETER, words + _parameter_modifiers(machine)))
    while words := _RESULTS.get(machine.text[machine.at]):
        machine.at += 1
        found.append((Kind.IMPL_RESULT, words + _derivation(machine)))
    while machine.skip("Y"):
        words = _PARAMETERS.get(machine.character())
        if words is None:
            raise NotUnderstoodError
        found.append((Kind.IMPL_RESULT, "@yields " + words))
    if machine.skip("z"):
        words = _RESULTS.get(machine.character())
        if words is None:
            raise NotUnderstoodError
        found.append((Kind.IMPL_RESULT, "@error " + words))
    machine.expect("_")
    return found


def _derivation(machine: Machine) -> str:
    return "@noDerivative " if machine.skip("w") else ""


def _parameter_modifiers(machine: Machine) -> str:
    """What else is said of a parameter; ``swift-demangle`` says nothing where there is more."""
    derivation = _derivation(machine)
    words = [word for letter, word in _OF_PARAMETERS if machine.skip(letter)]
    return derivation + "".join(words) if len(words) < _SEVERAL else ""
