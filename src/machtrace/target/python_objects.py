"""Python objects in another process's memory: text, bytes and code.

Each is known by its type's name, so that memory which was something else is never taken for one.
"""

from __future__ import annotations

from struct import Struct

from machtrace.errors import FormatError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader
from machtrace.model.symbol import PythonFrame, SourceLocation
from machtrace.target.python_layout import PythonLayout
from machtrace.target.python_lines import line_at

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
_LONGEST_TABLE = 1 << 22
"""Bytes of a table of lines; those of the largest generated modules are a few hundred KiB."""
_UNIT = 2
"""Bytes of an instruction, or of one of its inline caches (``_Py_CODEUNIT``)."""
_LARGEST_CODE = 1 << 26


class PythonObjects:
    """Reads objects, each piece of code once.

    Args:
        memory: the process's, which does not change meanwhile.
        layout: the interpreter's.
    """

    def __init__(self, memory: MemoryReader, layout: PythonLayout) -> None:
        self._memory = memory
        self._layout = layout
        self._types: dict[int, bytes] = {}
        self._codes: dict[int, _Code] = {}

    def function(self, code: int, instruction: int) -> PythonFrame:
        """The function that has its code at ``code`` and stands at ``instruction`` (Avmas).

        Raises:
            MemoryReadError: it is in memory that cannot be read.
            FormatError: it is no code, or the instruction is not its.
        """
        known = self._codes.get(code)
        if known is None:
            known = self._codes[code] = self._code(code)
        offset = instruction - known.start
        # The last instruction that ran is, before the first, the one before it.
        if not -_UNIT <= offset < known.count * _UNIT or offset % _UNIT:
            raise self._error("an instruction outside of its code", instruction)
        line = line_at(known.lines, known.first_line, offset // _UNIT)
        return PythonFrame(known.name, SourceLocation(known.path, line))

    def pointer(self, address: int) -> int:
        """The pointer at ``address``.

        Raises:
            MemoryReadError: it cannot be read.
        """
        value: int = _POINTER.unpack(self._memory.read(Avma(address), _POINTER.size))[0]
        return value

    def _code(self, address: int) -> _Code:
        layout = self._layout
        self._check_type(address, b"code")
        count = self.pointer(address + layout.size)
        if count > _LARGEST_CODE:
            raise self._error("code of impossible size", address)
        at = Avma(address + layout.code_first_line)
        return _Code(
            name=self.text(self.pointer(address + layout.code_name)),
            path=self.text(self.pointer(address + layout.code_file)),
            first_line=_INT.unpack(self._memory.read(at, _INT.size))[0],
            lines=self._bytes(self.pointer(address + layout.code_lines)),
            start=address + layout.code_instructions,
            count=count,
        )

    def text(self, address: int) -> str:
        """A ``str``; what no text can have is shown as U+FFFD.

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
            raise self._error("a str that is no name", address)
        start = layout.text_ascii if state & _ASCII else layout.text_compact
        data = bytes(memory.read(Avma(address + start), length * width))
        try:
            return data.decode(codec, "surrogatepass")
        except UnicodeDecodeError:
            return data.decode(codec, "replace")

    def _bytes(self, address: int) -> bytes:
        self._check_type(address, b"bytes")
        size = self.pointer(address + self._layout.size)
        if size > _LONGEST_TABLE:
            raise self._error("a table of lines of impossible size", address)
        return bytes(self._memory.read(Avma(address + self._layout.bytes_start), size))

    def _check_type(self, address: int, name: bytes) -> None:
        kind = self.pointer(address + self._layout.object_type)
        known = self._types.get(kind)
        if known is None:
            text = self.pointer(kind + self._layout.type_name)
            known = self._types[kind] = bytes(self._memory.read(Avma(text), len(name) + 1))
        if known != name + b"\0":
            raise self._error(f"no {name.decode()}", address)

    def _error(self, what: str, address: int) -> FormatError:
        return FormatError(what, source="CPython's memory", offset=address, remedy="capture again")


class _Code:
    """What is known of a piece of code."""

    __slots__ = ("count", "first_line", "lines", "name", "path", "start")

    def __init__(
        self, *, name: str, path: str, first_line: int, lines: bytes, start: int, count: int
    ) -> None:
        self.name = name
        self.path = path
        self.first_line = first_line
        self.lines = lines
        self.start = start
        self.count = count
