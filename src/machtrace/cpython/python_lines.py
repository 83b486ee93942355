"""Lines of Python code: ``co_linetable`` (CPython's ``InternalDocs/code_objects.md``, PEP 626).

Entries follow one another, each for some instructions. The first byte of an entry has its highest
bit set, then four bits for the kind and three for the number of instructions less one; what
follows depends on the kind. Numbers of any size take six bits a byte, the lowest first, with bit 6
set where more follow; of signed ones the lowest bit is the sign.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

_FIRST = 0x80
_ONE_LINE, _NO_COLUMNS, _LONG, _NONE = 10, 13, 14, 15
"""Kinds from which on, up to the next, a line comes of two more bytes; of a signed number; and of
one that the end's line and columns follow. Kinds below the first stay on their line."""
_MORE, _SIX_BITS = 0x40, 0x3F
_WIDEST = 64
"""Bits of a number; more are no line's."""
_FARTHEST = 1 << 40
"""No line is beyond; a table that says so is none from there on."""
_NO_LINE = -(1 << 62)


class LineTable:
    """The lines of a piece of code. Whatever the bytes, each instruction has a line or None.

    Args:
        table: ``co_linetable``.
        first_line: ``co_firstlineno``.
    """

    __slots__ = ("_first", "_lines", "_starts")

    def __init__(self, table: bytes, first_line: int) -> None:
        self._first = first_line
        # Together sixteen bytes for each of the table's, whoever made it.
        self._starts = array("q")
        self._lines = array("q")
        line, at, start = first_line, 0, 0
        while at < len(table):
            head = table[at]
            kind = head >> 3 & 15
            at += 1
            if kind in (_LONG, _NO_COLUMNS):
                line += _signed(table, at)
            elif _ONE_LINE <= kind < _NO_COLUMNS:
                line += kind - _ONE_LINE
            if abs(line) > _FARTHEST:
                break
            self._starts.append(start)
            self._lines.append(_NO_LINE if kind == _NONE else line)
            start += (head & 7) + 1
            while at < len(table) and not table[at] & _FIRST:
                at += 1
        self._starts.append(start)
        self._lines.append(_NO_LINE)

    def line(self, instruction: int) -> int | None:
        """The line of an instruction; None where it is of none, or the table does not reach it.

        Args:
            instruction: its number, in units of two bytes; below 0 is before the first, whose line
                is the function's own.
        """
        if instruction < 0:
            return self._first
        line = self._lines[bisect_right(self._starts, instruction) - 1]
        return None if line == _NO_LINE else line


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
