"""Values that Go's table keeps by code address: Go, ``runtime/symtab.go``, ``step``."""

from __future__ import annotations

_MORE = 0x80
_LONGEST_NUMBER = 5
"""Bytes: values have 32 bits."""


def pc_value(table: memoryview, start: int, address: int, quantum: int) -> int | None:
    """The value at an address; None where the table ends before it or is damaged.

    The table is a run of pairs: by how much the value changes (its sign in the lowest bit), and
    for how many instructions it then holds.

    Args:
        table: from the function's first pair on.
        start: where the function begins.
        address: where the value is wanted; counts as ``start`` does.
        quantum: bytes of the shortest instruction.
    """
    value, at, pc = -1, 0, start
    first = True
    while True:
        change, at = _number(table, at)
        if change is None or (change == 0 and not first):
            return None
        first = False
        value += -(change >> 1) - 1 if change & 1 else change >> 1
        length, at = _number(table, at)
        if length is None:
            return None
        pc += length * quantum
        if address < pc:
            return value


def _number(table: memoryview, at: int) -> tuple[int | None, int]:
    value = 0
    for shift, byte in enumerate(table[at : at + _LONGEST_NUMBER]):
        value |= (byte & 0x7F) << 7 * shift
        if not byte & _MORE:
            return value & 0xFFFFFFFF, at + shift + 1
    return None, at
