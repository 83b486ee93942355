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
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from struct import Struct
from typing import TypeAlias

from machtrace.cpython.layout import PythonLayout
from machtrace.cpython.runs import memory_error
from machtrace.errors import MachtraceError
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

_MAX_TEXT_LENGTH = 1 << 14
"""Characters; names of functions and files are shorter."""
_MAX_TABLE_LENGTH = 1 << 21
"""Bytes of a table of lines; those of the largest generated modules are a few hundred KiB."""
_UNIT = 2
"""Bytes of an instruction, or of one of its inline caches (``_Py_CODEUNIT``)."""
_MAX_CODE = 1 << 26
_MAX_BYTES = 1 << 23
"""Bytes of all names and tables of one capture, while the process is frozen."""


_MODULE_DICT = 16
"""``PyModuleObject.md_dict``."""
_KEYS = Struct("<9xBB13xQ")
"""``PyDictKeysObject``: binary logarithm of the index's size, kind, number of entries."""
_HASHED_ENTRY, _ENTRY = Struct("<3Q"), Struct("<2Q")
"""``PyDictKeyEntry`` of keys of any type, ``PyDictUnicodeEntry`` of ``str`` alone."""
_MAX_INDEX = 32
_MAX_ITEMS = 1 << 17
_TYPE_SIZE, _TYPE_FLAGS = 32, 168
"""``PyTypeObject.tp_basicsize``, ``tp_flags``."""
_CACHED_KEYS_3_11, _CACHED_KEYS = 872, 880
"""``PyHeapTypeObject.ht_cached_keys`` in 3.11, and since."""
_MANAGED_DICT, _INLINE_VALUES = 1 << 4, 1 << 2
"""``Py_TPFLAGS_MANAGED_DICT``, ``Py_TPFLAGS_INLINE_VALUES``."""
_ONE_POINTER_SINCE, _INLINE_SINCE = 12, 13
"""Minor versions: an instance's values and its dict share a pointer; values follow the instance."""
_VALID_SHIFT = 24
"""``PyDictValues.valid``."""
_DIGITS_SHIFT, _DIGIT_BITS = 3, 30
_MAX_DIGITS = 4
"""Digits of a thread's identifier, with room to spare."""


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
        self._functions: dict[int, PythonFrame] = {}

    @cached_property
    def lines(self) -> LineTable:
        """Decode the line, which takes longest and can wait until the process is resumed."""
        return LineTable(self.table, self.first_line)

    def function(self, instruction: int) -> PythonFrame:
        """Return the function at its ``instruction``-th instruction, with its line."""
        function = self._functions.get(instruction)
        if function is None:
            location = SourceLocation(self.path, self.lines.line(instruction))
            function = self._functions[instruction] = PythonFrame(self.name, location)
        return function


def function_at(
    code: PythonCode, address: int, instruction: int, layout: PythonLayout
) -> PythonFrame:
    """Return the function with its ``code`` at ``address`` that is at ``instruction`` (Avmas).

    Raises:
        FormatError: the instruction is not its.
    """
    offset = instruction - address - layout.code_instructions
    # The last instruction that ran is, before the first, the one before it.
    if not -_UNIT <= offset < code.count * _UNIT or offset % _UNIT:
        raise memory_error("an instruction is outside its code", instruction)
    return code.function(offset // _UNIT)


CopiedCode: TypeAlias = tuple[int, int, int, int, bytes, int, bytes, bytes]
"""See ``Code`` of :mod:`machtrace._native._ptrace`."""


def copied_code(copied: CopiedCode) -> PythonCode:
    """Return the code that the C reader copied."""
    _, first_line, count, name_width, name, file_width, file, table = copied
    return PythonCode(
        name=_decoded(name, name_width),
        path=_decoded(file, file_width),
        first_line=_INT.unpack(_UINT.pack(first_line))[0],
        table=table,
        count=count,
    )


class PythonObjects:
    """Reads objects of memory that does not change, each piece of code once."""

    def __init__(self, memory: MemoryReader, layout: PythonLayout) -> None:
        self._memory = memory
        self._layout = layout
        self._left = _MAX_BYTES
        self._types: dict[int, bytes] = {}
        self._codes: dict[int, PythonCode] = {}

    def code(self, address: int) -> PythonCode:
        """Return the code object at ``address`` (Avma).

        Raises:
            MemoryReadError: it is in memory that cannot be read.
            FormatError: it is no code.
        """
        known = self._codes.get(address)
        if known is None:
            known = self._codes[address] = self._code(address)
        return known

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
        if count > _MAX_CODE:
            raise memory_error("invalid size of code", address)
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
        if width not in _CODECS or not state & _COMPACT or length > _MAX_TEXT_LENGTH:
            raise memory_error("a str is not a valid name", address)
        start = layout.text_ascii if state & _ASCII else layout.text_compact
        return _decoded(self._read(address + start, length * width), width)

    def thread_names(self, interpreter: int) -> dict[int, str]:
        """Return the names of ``threading._active`` by the threads' ``pthread_self()``.

        Threads whose names cannot be read are left out.

        Args:
            interpreter: the address of its ``PyInterpreterState``.

        Raises:
            MemoryReadError, FormatError: the module is not loaded, or not as expected.
        """
        modules = self.pointer(interpreter + self._layout.interpreter_modules)
        module = self._item(modules, "threading")
        active = self._item(self.pointer(module + _MODULE_DICT), "_active")
        names: dict[int, str] = {}
        for key, thread in self._items(active):
            with suppress(MachtraceError):
                names[self._integer(key)] = self.text(self._attribute(thread, "_name"))
        return names

    def _items(self, address: int) -> Iterator[tuple[int, int]]:
        """Yield the addresses of keys and values of the ``dict`` at ``address``."""
        self._check_type(address, b"dict")
        values = self.pointer(address + self._layout.dict_values)
        keys = self.pointer(address + self._layout.dict_keys)
        if values:
            values += self._values_start
        for index, (key, value) in enumerate(self._entries(keys)):
            here = self.pointer(values + index * _POINTER.size) if values else value
            if key and here:
                yield key, here

    def _entries(self, keys: int) -> Iterator[tuple[int, int]]:
        """Yield keys and values of a ``PyDictKeysObject``."""
        head = self._memory.read(Avma(keys), _KEYS.size)
        index_size, kind, count = _KEYS.unpack(head)
        if index_size > _MAX_INDEX or count > _MAX_ITEMS:
            raise memory_error("invalid keys of a dict", keys)
        entry = _HASHED_ENTRY if kind == 0 else _ENTRY
        start = keys + _KEYS.size + (1 << index_size)
        for words in entry.iter_unpack(self._memory.read(Avma(start), count * entry.size)):
            yield words[-2:]

    def _item(self, address: int, name: str) -> int:
        """Return the address of a ``dict``'s value.

        Raises:
            FormatError: it lacks the key.
        """
        for key, value in self._items(address):
            if self._is_text(key, name):
                return value
        raise memory_error(f"no {name}", address)

    def _is_text(self, address: int, text: str) -> bool:
        is_as_long = self.pointer(address + self._layout.text_length) == len(text)
        return is_as_long and self.text(address) == text

    def _attribute(self, address: int, name: str) -> int:
        """Return the address of an instance's attribute; ``Objects/dictobject.c`` stores them."""
        kind = self.pointer(address + self._layout.object_type)
        flags = self.pointer(kind + _TYPE_FLAGS)
        if not flags & _MANAGED_DICT:
            raise memory_error("expected an object with a dict", address)
        minor = self._layout.version[1]
        dictionary = self.pointer(address - 3 * _POINTER.size)
        values = 0
        if minor >= _INLINE_SINCE:
            inline = address + self.pointer(kind + _TYPE_SIZE)
            if flags & _INLINE_VALUES and self.pointer(inline) >> _VALID_SHIFT & 1:
                values = inline + self._values_start
        elif minor < _ONE_POINTER_SINCE:
            values = self.pointer(address - 4 * _POINTER.size)
        elif dictionary & 1:
            values = dictionary + 1
        if not values:
            return self._item(dictionary, name)
        cached_keys = _CACHED_KEYS_3_11 if minor < _ONE_POINTER_SINCE else _CACHED_KEYS
        for index, (key, _) in enumerate(self._entries(self.pointer(kind + cached_keys))):
            if self._is_text(key, name):
                return self.pointer(values + index * _POINTER.size)
        raise memory_error(f"no {name}", address)

    @property
    def _values_start(self) -> int:
        """Bytes of a ``PyDictValues`` before its first value."""
        return _POINTER.size if self._layout.version[1] >= _INLINE_SINCE else 0

    def _integer(self, address: int) -> int:
        """Read a non-negative ``int``."""
        self._check_type(address, b"int")
        layout = self._layout
        tag = self.pointer(address + layout.size)
        count = tag if layout.version[1] < _ONE_POINTER_SINCE else tag >> _DIGITS_SHIFT
        if count > _MAX_DIGITS:
            raise memory_error("an int is not a thread's", address)
        data = self._memory.read(Avma(address + layout.long_digits), count * _UINT.size)
        return sum(digit << _DIGIT_BITS * at for at, (digit,) in enumerate(_UINT.iter_unpack(data)))

    def _bytes(self, address: int) -> bytes:
        self._check_type(address, b"bytes")
        size = self.pointer(address + self._layout.size)
        if size > _MAX_TABLE_LENGTH:
            raise memory_error("invalid size of a line table", address)
        return self._read(address + self._layout.bytes_start, size)

    def _read(self, address: int, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise memory_error("names and lines exceed the limit", address)
        return bytes(self._memory.read(Avma(address), size))

    def is_of_type(self, address: int, name: bytes) -> bool:
        """Return whether the object at ``address`` (Avma) is of the type of that name.

        Raises:
            MemoryReadError: it cannot be read.
        """
        kind = self.pointer(address + self._layout.object_type)
        text = self.pointer(kind + self._layout.type_name)
        return bytes(self._memory.read(Avma(text), len(name) + 1)) == name + b"\0"

    def _check_type(self, address: int, name: bytes) -> None:
        kind = self.pointer(address + self._layout.object_type)
        known = self._types.get(kind)
        if known is None:
            text = self.pointer(kind + self._layout.type_name)
            known = self._types[kind] = bytes(self._memory.read(Avma(text), len(name) + 1))
        if known != name + b"\0":
            raise memory_error(f"expected an object of type {name.decode()}", address)


def _decoded(data: bytes, width: int) -> str:
    codec = _CODECS[width]
    try:
        return data.decode(codec, "surrogatepass")
    except UnicodeDecodeError:
        return data.decode(codec, "replace")
