"""Python objects in another process's memory: text, bytes and code.

Each is known by its type's name, so that memory which was something else is never taken for one.

Lines of Python code: ``co_linetable`` (CPython's ``InternalDocs/code_objects.md``, PEP 626).

Entries follow one another, each for some instructions. The first byte of an entry has its highest
bit set, then four bits for the kind and three for the number of instructions less one; what
follows depends on the kind. Numbers of any size take six bits a byte, the lowest first, with bit 6
set where more follow; of signed ones the lowest bit is the sign.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import cached_property
from struct import Struct
from typing import NamedTuple

from machtrace.cpython.layout import PythonLayout
from machtrace.errors import FormatError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import PythonFrame, SourceLocation

_FIRST = 0x80
_ONE_LINE, _NO_COLUMNS, _LONG, _NONE = 10, 13, 14, 15
"""Kinds from which on, up to the next, a line comes of two more bytes; of a signed number; and of
one that the end's line and columns follow. Kinds below the first stay on their line."""
_MORE, _SIX_BITS = 0x40, 0x3F
_WIDEST = 64
"""Bits of a number; more are no line's."""
_FARTHEST = 1 << 40
"""Largest line number; a table is invalid from a larger one on."""
_NO_LINE = -(1 << 62)


class LineTable:
    """The lines of ``co_linetable``. Whatever the bytes, each instruction has a line or None."""

    __slots__ = ("_first", "_lines", "_starts")

    def __init__(self, table: bytes, first_line: int) -> None:
        self._first = first_line
        # In total at most sixteen bytes per byte of the table, even if it is hostile.
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
        """Return the line of an instruction; None if it has none or the table does not reach it.

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


_POINTER = Struct("<Q")
_INT = Struct("<i")
_UINT = Struct("<I")

_KIND_SHIFT, _KIND_MASK = 2, 7
_COMPACT, _ASCII = 1 << 5, 1 << 6
"""``PyASCIIObject.state``: two bits for interning, three for the kind, then these."""
_CODECS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
"""By bytes a character."""

_LONGEST_TEXT = 1 << 14
"""Characters; names of functions and files are shorter."""
_LONGEST_TABLE = 1 << 21
"""Bytes of a table of lines; those of the largest generated modules are a few hundred KiB."""
_UNIT = 2
"""Bytes of an instruction, or of one of its inline caches (``_Py_CODEUNIT``)."""
_LARGEST_CODE = 1 << 26
_MOST_BYTES = 1 << 23
"""Bytes of all names and tables of one capture, while the process is frozen."""


class PythonCode:
    """Name, file and lines of a code object.

    Args:
        name: its qualified name.
        path: of its file.
        first_line: of its first line.
        table: of its lines.
        count: of its instructions.
    """

    def __init__(self, *, name: str, path: str, first_line: int, table: bytes, count: int) -> None:
        self.name = name
        self.path = path
        self.first_line = first_line
        self.table = table
        self.count = count

    @cached_property
    def lines(self) -> LineTable:
        """Decode the line, which takes longest and can wait until the process is resumed."""
        return LineTable(self.table, self.first_line)


class Standing(NamedTuple):
    """Where a function stands."""

    code: PythonCode
    instruction: int
    """Its number."""

    def function(self) -> PythonFrame:
        """With its name and line."""
        code = self.code
        line = code.lines.line(self.instruction)
        return PythonFrame(code.name, SourceLocation(code.path, line))


class PythonObjects:
    """Reads objects of memory that does not change, each piece of code once."""

    def __init__(self, memory: MemoryReader, layout: PythonLayout) -> None:
        self._memory = memory
        self._layout = layout
        self._left = _MOST_BYTES
        self._types: dict[int, bytes] = {}
        self._codes: dict[int, PythonCode] = {}

    def standing(self, code: int, instruction: int) -> Standing:
        """Return the function with its code at ``code`` that is at ``instruction`` (Avmas).

        Raises:
            MemoryReadError: it is in memory that cannot be read.
            FormatError: it is no code, or the instruction is not its.
        """
        known = self._codes.get(code)
        if known is None:
            known = self._codes[code] = self._code(code)
        offset = instruction - code - self._layout.code_instructions
        # The last instruction that ran is, before the first, the one before it.
        if not -_UNIT <= offset < known.count * _UNIT or offset % _UNIT:
            raise self._error("an instruction is outside its code", instruction)
        return Standing(known, offset // _UNIT)

    def pointer(self, address: int) -> int:
        """Read the pointer at ``address``.

        Raises:
            MemoryReadError: it cannot be read.
        """
        value: int = _POINTER.unpack(self._memory.read(Avma(address), _POINTER.size))[0]
        return value

    def _code(self, address: int) -> PythonCode:
        layout = self._layout
        self._check_type(address, b"code")
        count = self.pointer(address + layout.size)
        if count > _LARGEST_CODE:
            raise self._error("invalid size of code", address)
        at = Avma(address + layout.code_first_line)
        return PythonCode(
            name=self.text(self.pointer(address + layout.code_name)),
            path=self.text(self.pointer(address + layout.code_file)),
            first_line=_INT.unpack(self._memory.read(at, _INT.size))[0],
            table=self._bytes(self.pointer(address + layout.code_lines)),
            count=count,
        )

    def text(self, address: int) -> str:
        """Read a ``str``; invalid characters are replaced by U+FFFD.

        Raises:
            MemoryReadError: it is in memory that cannot be read.
            FormatError: it is no ``str``, or longer than any name.
        """
        layout, memory = self._layout, self._memory
        self._check_type(address, b"str")
        length = self.pointer(address + layout.text_length)
        state: int = _UINT.unpack(memory.read(Avma(address + layout.text_state), _UINT.size))[0]
        width = state >> _KIND_SHIFT & _KIND_MASK
        codec = _CODECS.get(width)
        if codec is None or not state & _COMPACT or length > _LONGEST_TEXT:
            raise self._error("a str is not a valid name", address)
        start = layout.text_ascii if state & _ASCII else layout.text_compact
        data = self._read(address + start, length * width)
        try:
            return data.decode(codec, "surrogatepass")
        except UnicodeDecodeError:
            return data.decode(codec, "replace")

    def _bytes(self, address: int) -> bytes:
        self._check_type(address, b"bytes")
        size = self.pointer(address + self._layout.size)
        if size > _LONGEST_TABLE:
            raise self._error("invalid size of a line table", address)
        return self._read(address + self._layout.bytes_start, size)

    def _read(self, address: int, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise self._error("names and lines exceed the limit", address)
        return bytes(self._memory.read(Avma(address), size))

    def _check_type(self, address: int, name: bytes) -> None:
        kind = self.pointer(address + self._layout.object_type)
        known = self._types.get(kind)
        if known is None:
            text = self.pointer(kind + self._layout.type_name)
            known = self._types[kind] = bytes(self._memory.read(Avma(text), len(name) + 1))
        if known != name + b"\0":
            raise self._error(f"expected an object of type {name.decode()}", address)

    def _error(self, what: str, address: int) -> FormatError:
        return FormatError(what, source="CPython's memory", offset=address, remedy="capture again")
