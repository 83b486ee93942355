"""Functions made for certain types or arguments (Mangling.rst, "Function Specializations")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from machtrace.demangler.swift.machine import Machine, phrase
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError

SERIALISED = phrase("serialized")
_FUNCTION = "function signature specialization"
_DIGITS = frozenset("0123456789")
_INFORMATION = frozenset("qamr")


class _Information(NamedTuple):
    """``SPEC-INFO``."""

    items: list[Node]
    representation_changed: bool


def _information(machine: Machine) -> _Information:
    """Whether it is serialised, its async or its metatypes removed, its representation changed."""
    letters = ""
    while (c := machine.character()) in _INFORMATION:
        letters += c
    if c not in _DIGITS:
        raise NotUnderstoodError
    return _Information([SERIALISED] if "q" in letters else [], "r" in letters)


def generic_specialisation(words: str) -> Callable[[Machine], Node]:
    """``Tg`` and similar: a generic function for certain types."""

    def operator(machine: Machine) -> Node:
        items = _information(machine).items
        return Node(Kind.SPECIALISATION, [*items, *machine.types()], words)

    return operator


_WITHOUT_ARGUMENTS = {
    "g": generic_specialisation("generic specialization"),
    "G": generic_specialisation("generic not re-abstracted specialization"),
    "B": generic_specialisation("generic specialization"),
}


def specialisation_without_arguments(machine: Machine) -> Node:
    """``Tt``: a generic specialisation that has no use for some of the arguments."""
    machine.digits()
    while machine.skip("t"):
        machine.digits()
    return machine.choice(_WITHOUT_ARGUMENTS)(machine)


def partial_specialisation(words: str) -> Callable[[Machine], Node]:
    """``Tp``, ``TP``: a generic function that is less generic than it was."""

    def operator(machine: Machine) -> Node:
        items = _information(machine).items
        signature = phrase("Signature = {0}", machine.need(Kind.TYPE))
        return Node(Kind.SPECIALISATION, [*items, signature], words)

    return operator


def function_specialisation(machine: Machine) -> Node:
    """``Tf``: a function whose arguments are known, unused, or passed in another way."""
    items, changed = _information(machine)
    machine.digits()
    if changed:
        return Node(Kind.SPECIALISATION, items, _FUNCTION, 1)
    arguments = []
    while not machine.skip("_"):
        arguments.append(_changes(machine))
        machine.spend(1)
    result = [] if machine.skip("n") else _changes(machine)
    nodes = [_popped(machine, changes) for changes in reversed(arguments)]
    nodes.reverse()
    items += argument_items(nodes)
    if result:
        words = "".join(change.text for change in result if change.node is _without_operands)
        items.append(phrase(f"Return = {words}"))
    return Node(Kind.SPECIALISATION, items, _FUNCTION)


def argument_items(arguments: Sequence[Sequence[Node]]) -> list[Node]:
    """Return the changes to the arguments, each with its number; unchanged ones are omitted."""
    return [
        phrase(f"Arg[{number}] = {{0}}", Node(Kind.LIST, changes))
        for number, changes in enumerate(arguments)
        if changes
    ]


class _Change(NamedTuple):
    """A change to an argument, with the function that reads the replacement from the stack."""

    node: Callable[[Machine, str], Node]
    text: str


def _flags(machine: Machine, first: str, more: Sequence[tuple[str, str]]) -> _Change:
    words = [first]
    words += [word for letter, word in more if machine.skip(letter)]
    return _Change(_without_operands, " and ".join(words))


def _without_operands(_machine: Machine, text: str) -> Node:
    return phrase(text)


DEAD = "Dead"
TO_GUARANTEED = "Owned To Guaranteed"
TO_OWNED = "Guaranteed To Owned"
EXPLODED = "Exploded"
IN_ANOTHER_WAY = {
    "i": "Value Promoted from Box",
    "s": "Stack Promoted from Box",
    "r": "InOut Converted to Out",
}
_G, _O, _X, _D = ("G", TO_GUARANTEED), ("O", TO_OWNED), ("X", EXPLODED), ("D", DEAD)
_OPTION_SETS: dict[str, tuple[str, Sequence[tuple[str, str]]]] = {
    "e": ("Existential To Protocol Constrained Generic", (_D, _G, _O, _X)),
    "d": (DEAD, (_G, _O, _X)),
    "g": (TO_GUARANTEED, (_X,)),
    "o": (TO_OWNED, (_X,)),
    "x": (EXPLODED, ()),
}


def _changes(machine: Machine) -> list[_Change]:
    """``ARG-SPEC-KIND``: what was done to one argument, or to the result."""
    c = machine.character()
    if c == "n":
        return []
    if c == "p":
        return _constants(machine)
    if c == "c":
        return [_Change(_closure, "")]
    if c == "C":
        words = f"[Same As Argument {machine.natural() or 0}]"
        return [_Change(_without_operands, words)]
    if moved := IN_ANOTHER_WAY.get(c):
        return [_Change(_without_operands, moved)]
    if c in _OPTION_SETS:
        return [_flags(machine, *_OPTION_SETS[c])]
    raise NotUnderstoodError


_ENCODINGS = {"b": "u8", "w": "u16", "c": "objc"}
_NUMBERS = {"i": "Integer", "d": "Float"}
_MAX_DIGITS = 64
"""Most digits of a constant, which has 64 bits."""


def _constants(machine: Machine) -> list[_Change]:
    """``CONST-PROP``: a constant; the fields of a struct (``S``) follow it."""
    changes = []
    while machine.skip("S"):
        changes.append(_Change(_struct, ""))
    is_struct = bool(changes)
    while True:
        constant = _constant(machine)
        if constant is None:
            break
        changes.append(constant)
        if not is_struct:
            break
    if not changes:
        raise NotUnderstoodError
    return changes


def _constant(machine: Machine) -> _Change | None:
    c, following = machine.text[machine.at], machine.text[machine.at + 1]
    if c in _NUMBERS and following in _DIGITS:
        machine.at += 1
        number = machine.digits()
        if len(number) > _MAX_DIGITS:
            raise NotUnderstoodError
        return _Change(_without_operands, f"[Constant Propagated {_NUMBERS[c]} : {number}]")
    if c == "s" and following in _ENCODINGS:
        machine.at += 2
        return _Change(_string, _ENCODINGS[following])
    if c in _NAMED:
        machine.at += 1
        return _NAMED[c]
    return None


def _popped(machine: Machine, changes: Sequence[_Change]) -> list[Node]:
    nodes = [change.node(machine, change.text) for change in reversed(changes)]
    nodes.reverse()
    return nodes


def mangled(name: str) -> Node:
    """A name that may be mangled, and is then printed as what it stands for."""
    return Node(Kind.MANGLED, text=name)


def closure_change(name: str, types: Sequence[Node]) -> Node:
    """An argument that is always a certain closure, which captures values of ``types``.

    Its first bracket is not closed: so ``swift-demangle`` prints it.
    """
    words = "[Closure Propagated : {0}, Argument Types : [{1}]"
    return phrase(words, mangled(name), Node(Kind.LIST, types, ", "))


def constant_change(words: str, name: str) -> Node:
    """An argument that is always a certain function or global variable."""
    return phrase(f"[Constant Propagated {words} : {{0}}]", mangled(name))


def string_change(encoding: str, text: str) -> Node:
    """An argument that is always a certain string."""
    return phrase(f"[Constant Propagated String : {encoding}'{{0}}']", mangled(text))


def _struct(machine: Machine, _text: str) -> Node:
    return phrase("[Constant Propagated Struct : {0}]", machine.need(Kind.TYPE))


def _closure(machine: Machine, _text: str) -> Node:
    types = machine.pop_all(Kind.TYPE)
    return closure_change(machine.need(Kind.IDENTIFIER).text, types)


def _named(machine: Machine, text: str) -> Node:
    return constant_change(text, machine.need(Kind.IDENTIFIER).text)


def _string(machine: Machine, encoding: str) -> Node:
    """A string; one that begins with a digit or an underscore has another underscore before it."""
    return string_change(encoding, machine.need(Kind.IDENTIFIER).text.removeprefix("_"))


def _key_path(machine: Machine, _text: str) -> Node:
    value, root = machine.need(Kind.TYPE), machine.need(Kind.TYPE)
    name = mangled(machine.need(Kind.IDENTIFIER).text)
    return phrase("[Constant Propagated KeyPath : {0}<{1},{2}>]", name, root, value)


_NAMED = {
    "f": _Change(_named, "Function"),
    "g": _Change(_named, "Global"),
    "k": _Change(_key_path, ""),
}
