"""Lines of Python code: ``co_linetable`` (CPython's ``InternalDocs/code_objects.md``, PEP 626).

Entries follow one another, each for some instructions. The first byte of an entry has its highest
bit set, then four bits for the kind and three for the number of instructions less one; what
follows depends on the kind. Numbers of any size take six bits a byte, the lowest first, with bit 6
set where more follow; of signed ones the lowest bit is the sign.
"""

from __future__ import annotations

_FIRST = 0x80
_ONE_LINE, _NO_COLUMNS, _LONG, _NONE = 10, 13, 14, 15
_MORE, _SIX_BITS = 0x40, 0x3F
_WIDEST = 64
"""Bits of a number; more are no line's."""


def line_at(table: bytes, first_line: int, instruction: int) -> int | None:
    """The line of an instruction; None where it is of none, or the table does not reach it.

    Args:
        table: ``co_linetable``. Whatever it holds, a line or None comes of it, in time that grows
            with its size.
        first_line: ``co_firstlineno``.
        instruction: its number, in units of two bytes; below 0 is before the first, whose line is
            the function's own.
    """
    if instruction < 0:
        return first_line
    line, at, end = first_line, 0, 0
    while at < len(table):
        head = table[at]
        kind = head >> 3 & 15
        end += (head & 7) + 1
        at += 1
        if kind in (_LONG, _NO_COLUMNS):
            line += _signed(table, at)
        elif _ONE_LINE <= kind < _NO_COLUMNS:
            line += kind - _ONE_LINE
        if instruction < end:
            return None if kind == _NONE else line
        while at < len(table) and not table[at] & _FIRST:
            at += 1
    return None


def _signed(table: bytes, at: int) -> int:
    value = shift = 0
    while at < len(table) and shift < _WIDEST:
        byte = table[at]
        value |= (byte & _SIX_BITS) << shift
        if not byte & _MORE:
            break
        shift += 6
        at += 1
    return -(value >> 1) if value & 1 else value >> 1
