"""Places in a frame whose stack pointer was aligned: how far from the CFA, only a run can tell."""

from __future__ import annotations

from struct import pack

from machtrace.formats.dwarf import operations
from machtrace.unwinder.rules import AtExpression


def aligned_place(below: int, alignment: int, offset: int) -> AtExpression:
    """Where ``(cfa + below) & -alignment`` is, ``offset`` bytes on; ``alignment`` a power of 2."""
    expression = bytes((operations.CONST4S,)) + pack("<i", below)
    expression += bytes((operations.PLUS, operations.CONST4S)) + pack("<i", -alignment)
    expression += bytes((operations.AND, operations.CONST4S)) + pack("<i", offset)
    return AtExpression(expression + bytes((operations.PLUS,)))
