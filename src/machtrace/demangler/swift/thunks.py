"""Thunks, and attributes of functions (Mangling.rst, "Globals")."""

from __future__ import annotations

from machtrace.demangler.swift.conformances import popped_conformance
from machtrace.demangler.swift.differentiation import (
    derivative,
    derivative_table_thunk,
    self_reordering_thunk,
    subset_thunk,
)
from machtrace.demangler.swift.generics import (
    associated_name,
    associated_path,
    popped_protocol,
)
from machtrace.demangler.swift.machine import (
    Machine,
    Operator,
    by_style,
    fixed,
    last_type,
    phrase,
    phrases,
)
from machtrace.demangler.swift.nodes import (
    ENTITIES,
    Kind,
    Node,
    NotUnderstoodError,
)
from machtrace.demangler.swift.specialisations import (
    function_specialisation,
    generic_specialisation,
    partial_specialisation,
    specialisation_without_arguments,
)

_ATTRIBUTES = {
    "o": Node(Kind.ATTRIBUTE, (), "@objc "),
    "O": Node(Kind.ATTRIBUTE, (), "@nonobjc "),
    "D": Node(Kind.ATTRIBUTE, (), "dynamic "),
    "d": Node(Kind.ATTRIBUTE, (), "super "),
    "u": Node(Kind.ATTRIBUTE, (), "async function pointer to "),
    "E": Node(Kind.THUNK_ATTRIBUTE, (), "distributed thunk "),
    "F": Node(Kind.THUNK_ATTRIBUTE, (), "distributed accessor for "),
    "m": Node(Kind.THUNK_ATTRIBUTE, (), "merged "),
    "X": Node(Kind.THUNK_ATTRIBUTE, (), "dynamically replaceable variable for "),
    "x": Node(Kind.THUNK_ATTRIBUTE, (), "dynamically replaceable key for "),
    "I": Node(Kind.THUNK_ATTRIBUTE, (), "dynamically replaceable thunk for "),
    "a": Node(Kind.PARTIAL_APPLY, (), "partial apply ObjC forwarder"),
    "A": Node(Kind.PARTIAL_APPLY, (), "partial apply forwarder"),
}
"""Attributes before a function's name."""
_LATER_ATTRIBUTES = {
    "b": Node(Kind.THUNK_ATTRIBUTE, (), "back deployment thunk for "),
    "B": Node(Kind.ATTRIBUTE, (), "back deployment fallback for "),
    "c": Node(Kind.ATTRIBUTE, (), "coro function pointer to "),
    "d": Node(Kind.ATTRIBUTE, (), "default override of "),
    "S": Node(Kind.ATTRIBUTE, (), "#_hasSymbol query for "),
}
"""Those behind ``w``."""
ACCESSIBLE_FUNCTION = Node(Kind.THUNK_ATTRIBUTE, (), "accessible function runtime record for ")
_OF_ENTITY = {
    "c": "curry thunk of {0}",
    "j": "dispatch thunk of {0}",
    "q": "method descriptor for {0}",
    "S": "protocol self-conformance witness for {0}",
}


_OF_ASSOCIATED_TYPE = {
    "l": "associated type descriptor for {0}",
    "M": "default associated type metadata accessor for {0}",
}


def thunk(machine: Machine) -> Node:
    """``T``: thunks, specialisations, and attributes before a function's name."""
    if machine.skip("w"):
        return machine.choice(_LATER_ATTRIBUTES)
    return machine.choice(_THUNKS)(machine)


def _instance_thunk(machine: Machine) -> Node:
    if machine.skip("I"):
        return phrase("identity thunk of {0}", machine.need_any(ENTITIES))
    raise NotUnderstoodError


def _resumed(word: str) -> Operator:
    """``TQ``, ``TY``: a part of an asynchronous function, from a point at which it resumes."""

    def operator(machine: Machine) -> Node:
        words = f"({machine.index()}) {word} resume partial function for "
        return Node(Kind.THUNK_ATTRIBUTE, (), words)

    return operator


_ERROR_FLAGS = ("", " nonzero on error", " zero on error")


def _completion_handler(prefix: str) -> Operator:
    """``Tz``, ``TZ``: the block that an Objective-C method calls when it is done."""

    def operator(machine: Machine) -> Node:
        flag = machine.index()
        signature = machine.pop(Kind.GENERIC_SIGNATURE)
        result, block = machine.need(Kind.TYPE), machine.need(Kind.TYPE)
        words = f"{prefix}@objc completion handler block implementation for "
        words += "{2}{0}" if signature else "{0}"
        words += " with result type {1}"
        words += _ERROR_FLAGS[flag] if flag < len(_ERROR_FLAGS) else " <invalid error flag>"
        return phrase(words, block, result, *([signature] if signature else []))

    return operator


def _vtable_thunk(machine: Machine) -> Node:
    base, derived = machine.need_any(ENTITIES), machine.need_any(ENTITIES)
    return phrase("vtable thunk for {0} dispatching to {1}", base, derived)


def _protocol_witness(machine: Machine) -> Node:
    entity = machine.need_any(ENTITIES)
    conformance = popped_conformance(machine)
    return phrase("protocol witness for {0} in conformance {1}", entity, conformance)


def reabstraction(words: str, signature: Node | None, to: Node, from_: Node) -> Node:
    """Return a thunk that calls a function of one abstraction as if it had another."""
    short = phrase("thunk for {0}", from_)
    if signature:
        return by_style(phrase(words + "{2} from {1} to {0}", to, from_, signature), short)
    return by_style(phrase(words + "from {1} to {0}", to, from_), short)


def _reabstraction(words: str) -> Operator:
    def operator(machine: Machine) -> Node:
        signature = machine.pop(Kind.GENERIC_SIGNATURE)
        to, from_ = machine.need(Kind.TYPE), machine.need(Kind.TYPE)
        return reabstraction(words, signature, to, from_)

    return operator


def _reabstraction_with_self(machine: Machine) -> Node:
    signature = machine.pop(Kind.GENERIC_SIGNATURE)
    self_, to, from_ = (machine.need(Kind.TYPE) for _ in range(3))
    words = "reabstraction thunk "
    if signature:
        return phrase(words + "{3} from {2} to {1} self {0}", self_, to, from_, signature)
    return phrase(words + "from {2} to {1} self {0}", self_, to, from_)


def _reabstraction_with_actor(machine: Machine) -> Node:
    actor = machine.need(Kind.TYPE)
    return phrase("{0} with global actor constraint {1}", machine.stack.pop(), actor)


_PATH_METHODS = {"mu": "key path unapplied method ", "MA": "key path applied method "}


def _key_path(words: str) -> Operator:
    """``TK``, ``Tk``: what a key path calls to get or set."""

    def operator(machine: Machine) -> Node:
        start = words
        if method := _PATH_METHODS.get(machine.text[machine.at : machine.at + 2]):
            machine.at += 2
            start = method
        serialised = machine.skip("q")
        types = machine.pop_all(Kind.TYPE)
        if not types:
            raise NotUnderstoodError
        signature = machine.pop(Kind.GENERIC_SIGNATURE)
        parts = [signature, *types] if signature else types
        end = "{0} : {1}, serialized" if serialised else "{0} : {1}"
        return phrase(start + end, machine.stack.pop(), Node(Kind.LIST, parts))

    return operator


def _key_path_operator(word: str) -> Operator:
    """``TH``, ``Th``: what compares or hashes the arguments of a subscript in a key path."""

    def operator(machine: Machine) -> Node:
        machine.skip("q")
        signature = machine.pop(Kind.GENERIC_SIGNATURE)
        types = machine.pop_all(Kind.TYPE)
        if machine.stack or not (signature or types):
            raise NotUnderstoodError
        words = f"key path index {word} operator for "
        arguments = Node(Kind.LIST, types, ", ")
        if signature:
            return phrase(words + "{1}({0})", arguments, signature)
        return phrase(words + "({0})", arguments)

    return operator


def _associated_conformance(words: str) -> Operator:
    def operator(machine: Machine) -> Node:
        requirement = popped_protocol(machine)
        path = associated_path(machine)
        return phrase(words + " for {0}.{1}: {2}", machine.need(Kind.TYPE), path, requirement)

    return operator


def _base_conformance(machine: Machine) -> Node:
    requirement = popped_protocol(machine)
    words = "base conformance descriptor for {0}: {1}"
    return phrase(words, machine.need(Kind.TYPE), requirement)


def _outlined_variable(machine: Machine) -> Node:
    number = machine.index()
    what = "read-only object" if machine.skip("r") else "variable"
    return Node(Kind.ATTRIBUTE, (), f"outlined {what} #{number} of ")


_BRIDGED = frozenset("opam")
_BRIDGED_ARGUMENTS = frozenset("nbg")


def _bridged_method(machine: Machine) -> Node:
    """``Te``: a call of an Objective-C method with the bridging of its arguments."""
    letters = machine.character()
    if letters not in _BRIDGED:
        raise NotUnderstoodError
    while not machine.skip("_"):
        letters += machine.character()
        if letters[-1] not in _BRIDGED_ARGUMENTS:
            raise NotUnderstoodError
    return Node(Kind.ATTRIBUTE, (), f"outlined bridged method ({letters}) of ")


def _derivative(machine: Machine) -> Node:
    if machine.skip("S"):
        return subset_thunk(machine)
    if machine.skip("O"):
        return self_reordering_thunk(machine)
    if machine.skip("V"):
        return derivative_table_thunk(machine)
    return derivative(machine)


_THUNKS: dict[str, Operator] = {
    **{letter: fixed(attribute) for letter, attribute in _ATTRIBUTES.items()},
    **phrases(_OF_ENTITY, lambda machine: machine.need_any(ENTITIES)),
    **phrases({"C": "coroutine continuation prototype for {0}"}, last_type),
    **phrases(_OF_ASSOCIATED_TYPE, associated_name),
    **phrases({"L": "protocol requirements base descriptor for {0}"}, popped_protocol),
    "T": _instance_thunk,
    "Q": _resumed("await"),
    "Y": _resumed("suspend"),
    "z": _completion_handler(""),
    "Z": _completion_handler("predefined "),
    "V": _vtable_thunk,
    "W": _protocol_witness,
    "R": _reabstraction("reabstraction thunk helper "),
    "r": _reabstraction("reabstraction thunk "),
    "y": _reabstraction_with_self,
    "U": _reabstraction_with_actor,
    "g": generic_specialisation("generic specialization"),
    "G": generic_specialisation("generic not re-abstracted specialization"),
    "B": generic_specialisation("generic specialization"),
    "s": generic_specialisation("generic pre-specialization"),
    "i": generic_specialisation("inlined generic function"),
    "t": specialisation_without_arguments,
    "p": partial_specialisation("generic partial specialization"),
    "P": partial_specialisation("generic not-reabstracted partial specialization"),
    "f": function_specialisation,
    "K": _key_path("key path getter for "),
    "k": _key_path("key path setter for "),
    "H": _key_path_operator("equality"),
    "h": _key_path_operator("hash"),
    "n": _associated_conformance("associated conformance descriptor"),
    "N": _associated_conformance("default associated conformance accessor"),
    "b": _base_conformance,
    "v": _outlined_variable,
    "e": _bridged_method,
    "J": _derivative,
}
