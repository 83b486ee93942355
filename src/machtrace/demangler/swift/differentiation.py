"""Derivatives of functions (Mangling.rst, "Globals": AutoDiff)."""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.demangler.swift.machine import Machine, by_style, phrase
from machtrace.demangler.swift.nodes import Kind, Node, NotUnderstoodError

_FUNCTIONS = {
    "f": "forward-mode derivative",
    "r": "reverse-mode derivative",
    "d": "differential",
    "p": "pullback",
}
_MAX_INDICES = 256
"""Parameters or results of a function that a derivative is taken of."""
_WITNESSES = {"f": "forward-mode", "r": "reverse-mode", "d": "normal", "l": "linear"}


def derivative(machine: Machine, prefix: str = "") -> Node:
    """``TJ``: a derivative, differential or pullback of what was read before."""
    nodes = _all(machine)
    words = prefix + machine.choice(_FUNCTIONS) + " of {0}"
    parameters = _indices(machine, "p")
    results = _indices(machine, "r")
    signature: Sequence[Node] = ()
    if nodes and nodes[-1].kind is Kind.GENERIC_SIGNATURE:
        signature = [nodes.pop()]
    of = Node(Kind.LIST, nodes)
    respects = f"{words} with respect to parameters {parameters} and results {results}"
    if signature:
        respects += " with {1}"
    both = by_style(phrase(respects, of, *signature), phrase(words, of))
    return Node(Kind.AUTODIFF_FUNCTION, [both], "{0}")


def derivative_table_thunk(machine: Machine) -> Node:
    """``TJV``: what stands in a vtable for a derivative."""
    return derivative(machine, "vtable thunk for ")


def subset_thunk(machine: Machine) -> Node:
    """``TJS``: a derivative with respect to fewer parameters than it was made for."""
    nodes = _all(machine)
    words = f"autodiff subset parameters thunk for {machine.choice(_FUNCTIONS)} from {{0}}"
    parameters = _indices(machine, "p")
    results = _indices(machine, "r")
    wanted = _indices(machine, "P")
    to = nodes.pop() if len(nodes) > 1 else None
    of = Node(Kind.LIST, nodes)
    respects = f"{words} with respect to parameters {parameters} and results {results}"
    respects += f" to parameters {wanted}"
    short = phrase(words, of)
    if to:
        return by_style(phrase(respects + " of type {1}", of, to), short)
    return by_style(phrase(respects, of), short)


def self_reordering_thunk(machine: Machine) -> Node:
    """``TJO``: a derivative with self in another place."""
    signature = machine.pop(Kind.GENERIC_SIGNATURE)
    to, of = machine.need(Kind.TYPE), machine.need(Kind.TYPE)
    words = "autodiff self-reordering reabstraction thunk for "
    kind = machine.choice(_FUNCTIONS)
    short = phrase(words + "{0}", of)
    ends = "from {0} to {1}"
    if signature:
        return by_style(phrase(f"{words}{kind}{{2}}  {ends}", of, to, signature), short)
    return by_style(phrase(f"{words}{kind} {ends}", of, to), short)


def differentiability_witness(machine: Machine) -> Node:
    """``WJ``: a table of the derivatives of a function."""
    signature = machine.pop(Kind.GENERIC_SIGNATURE)
    of = Node(Kind.LIST, _all(machine))
    words = machine.choice(_WITNESSES) + " differentiability witness for {0}"
    parameters = _indices(machine, "p")
    results = _indices(machine, "r")
    words += f" with respect to parameters {parameters} and results {results}"
    if signature:
        return phrase(words + " with {1}", of, signature)
    return phrase(words, of)


def _all(machine: Machine) -> list[Node]:
    nodes = machine.stack[:]
    machine.stack.clear()
    return nodes


def _indices(machine: Machine, end: str) -> str:
    """A set of parameters or results (``INDEX-SUBSET``): ``S`` for each in it, else ``U``."""
    text, start = machine.text, machine.at
    at = start
    while text[at] in "SU":
        at += 1
    machine.at = at
    if not 0 < at - start <= _MAX_INDICES:
        raise NotUnderstoodError
    machine.expect(end)
    found = ", ".join(str(number) for number, c in enumerate(text[start:at]) if c == "S")
    return "{{" + found + "}}"
