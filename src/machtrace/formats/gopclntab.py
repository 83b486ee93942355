"""Go's table of functions, files and lines: ``.gopclntab``, ``__gopclntab``.

Go programs use it for their own tracebacks, so stripping leaves it. Source: Go,
``runtime/symtab.go`` (``pcHeader``, ``moduledata``, ``step``) and ``runtime/runtime2.go``
(``_func``) of the releases that changed it: 1.2, 1.16, 1.18 and 1.20. Since 1.26 the start of the
code is in ``moduledata``, no longer in the header.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from machtrace.errors import FormatError
from machtrace.frozen import dataclass

_MORE = 0x80
_MAX_NUMBER_LENGTH = 5
"""Maximum bytes of a number: values have 32 bits."""


def pc_values(table: memoryview, start: int, address: int, quantum: int) -> list[int]:
    """Return the values of a function from its start up to an address, in order.

    Empty if the table ends before the address or is malformed. The table is a run of pairs: the
    change of the value (its sign in the lowest bit), and the number of instructions for which it
    then applies.

    Args:
        table: starts with the function's first pair.
        start: the function's address.
        address: the wanted address, relative to the same base as ``start``.
        quantum: bytes of the shortest instruction.
    """
    value, at, pc = -1, 0, start
    values: list[int] = []
    while True:
        change, at = _number(table, at)
        if change is None or (change == 0 and values):
            return []
        value += -(change >> 1) - 1 if change & 1 else change >> 1
        values.append(value)
        length, at = _number(table, at)
        if length is None:
            return []
        pc += length * quantum
        if address < pc:
            return values


def _number(table: memoryview, at: int) -> tuple[int | None, int]:
    value = 0
    for shift, byte in enumerate(table[at : at + _MAX_NUMBER_LENGTH]):
        value |= (byte & 0x7F) << 7 * shift
        if not byte & _MORE:
            return value & 0xFFFFFFFF, at + shift + 1
    return None, at


_MAGICS = {0xFFFFFFFB: 2, 0xFFFFFFFA: 16, 0xFFFFFFF0: 18, 0xFFFFFFF1: 20}
"""The release of Go 1 that introduced each magic number."""
_HEADER = 8
_MAX_NAME_LENGTH = 1 << 16
_NAME, _PC_SP, _PC_FILE, _PC_LINE, _UNIT, _KIND = 1, 4, 5, 6, 8, 9
"""Indices of the four-byte fields of a ``_func``, from its entry on. The kind and the flags are the
first two bytes of the last one, which has another field before it since Go 1.20."""

TOP_FRAME, WRITES_SP = 1, 2
"""Flags of functions, since Go 1.17: Go's traceback ends in them; they switch stacks."""

Addresses = npt.NDArray[np.uint64]


class GoLocation(NamedTuple):
    """A position in Go source."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """The header's fields; offsets are from the start of the table."""

    release: int
    little_endian: bool
    quantum: int
    """Bytes of the shortest instruction."""
    pointer_size: int
    functions: int
    """The number of functions."""
    text_start: int
    """The base of entries; 0 if the header does not state it, or entries are addresses."""
    names: int
    units: int
    files: int
    pc_values: int
    table: int
    """The offset of the functions' entries."""


class GoFunctions:
    """The functions of a Go program, by address."""

    def __init__(self, data: memoryview, source: str, *, text_start: int | None = None) -> None:
        """Read the header and the functions' entries.

        Args:
            data: the section.
            source: the name in errors.
            text_start: the start of Go's code (Svma), for tables that do not state it.

        Raises:
            FormatError: it is not such a table, or truncated.
        """
        self._data = data
        self._layout = layout = _parse_header(data, source)
        width = 4 if layout.release >= 18 else layout.pointer_size  # noqa: PLR2004 (Go 1.18)
        kind = np.dtype(("<" if layout.little_endian else ">") + f"u{width}")
        count = 2 * layout.functions + 1
        room = len(data) - layout.table
        if room < 0 or count > room // width:
            message = f"{layout.functions} functions do not fit into {max(0, room)} bytes"
            raise FormatError(message, source=source, offset=layout.table)
        words = np.frombuffer(data, kind, count, layout.table).astype(np.uint64)
        base = np.uint64(0)
        if width == 4 and layout.release >= 18:  # noqa: PLR2004 (Go 1.18)
            start = layout.text_start or text_start
            if start is None:
                raise FormatError("where code begins is not known", source=source, offset=_HEADER)
            base = np.uint64(start & (1 << 64) - 1)
        entries = words[::2] + base
        ordered = entries[:-1] < entries[1:]
        rows = np.flatnonzero(ordered)
        self.starts: Addresses = entries[:-1][rows]
        """The functions' starts (Svma), sorted."""
        self.ends: Addresses = entries[1:][rows]
        """The functions' ends: the starts of the next ones."""
        self._records = words[1::2][rows]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def states_text_start(self) -> bool:
        """Whether the table itself states where code begins, or has addresses."""
        return self._layout.release < 18 or bool(self._layout.text_start)  # noqa: PLR2004 (Go 1.18)

    def name(self, row: int) -> str:
        """Return the function's name with its package; empty if the table is malformed."""
        offset = self._field(row, _NAME)
        return "" if offset is None else self._string(self._layout.names, offset)

    def row_at(self, address: int) -> int | None:
        """Return the row of the function at ``address`` (Svma); None outside of all functions."""
        if not 0 <= address < 1 << 64:
            return None
        row = int(self.starts.searchsorted(np.uint64(address), "right")) - 1
        return row if row >= 0 and address < int(self.ends[row]) else None

    def frame_size(self, row: int, address: int) -> int | None:
        """Return the bytes by which the function has lowered sp at ``address``; None if unknown.

        A return address that the call has pushed is not included.
        """
        size = self._value(row, _PC_SP, address)
        return None if size is None or size < 0 else size

    def first_frame_size(self, row: int, address: int) -> int:
        """Return the bytes by which the prologue lowered sp; 0 where no frame exists.

        Assembly may have lowered sp further before ``address``.
        """
        first = 0
        for size in self._values(row, _PC_SP, address):
            first = (first or size) if size > 0 else 0
        return first

    def flags(self, row: int) -> int:
        """Return the function's flags; none before Go 1.17."""
        word = self._field(row, _KIND + (self._layout.release >= 20))  # noqa: PLR2004 (Go 1.20)
        return 0 if word is None or self._layout.release < 16 else word >> 8 & 0xFF  # noqa: PLR2004

    def location(self, row: int, address: int) -> GoLocation | None:
        """Return the source line of an address (Svma) in the function, or None.

        For an inlined call, it is the line in the inlined function.
        """
        line = self._value(row, _PC_LINE, address)
        file = self._value(row, _PC_FILE, address)
        if line is None or file is None or line < 0 or file < 0:
            return None
        path = self._file(row, file)
        return GoLocation(path, line) if path else None

    def _file(self, row: int, number: int) -> str:
        layout = self._layout
        if layout.release < 16:  # noqa: PLR2004 (Go 1.16)
            offset = self._word(layout.files + 4 * number)
            return "" if offset is None else self._string(0, offset)
        unit = self._field(row, _UNIT)
        if unit is None:
            return ""
        offset = self._word(layout.units + 4 * (unit + number))
        return "" if offset is None else self._string(layout.files, offset)

    def _value(self, row: int, field: int, address: int) -> int | None:
        values = self._values(row, field, address)
        return values[-1] if values else None

    def _values(self, row: int, field: int, address: int) -> list[int]:
        offset = self._field(row, field)
        if not offset:
            return []
        return pc_values(
            self._data[self._layout.pc_values + offset :],
            int(self.starts[row]),
            address,
            self._layout.quantum,
        )

    def _field(self, row: int, number: int) -> int | None:
        """Return a four-byte field of the function's record, after its entry."""
        layout = self._layout
        entry = 4 if layout.release >= 18 else layout.pointer_size  # noqa: PLR2004 (Go 1.18)
        start = int(self._records[row])
        if layout.release >= 16:  # noqa: PLR2004 (Go 1.16)
            start += layout.table
        return self._word(start + entry + 4 * (number - 1))

    def _word(self, at: int) -> int | None:
        if not 0 <= at <= len(self._data) - 4:
            return None
        order = "little" if self._layout.little_endian else "big"
        return int.from_bytes(self._data[at : at + 4], order)  # type: ignore[arg-type]

    def _string(self, table: int, offset: int) -> str:
        start = table + offset
        found = bytes(self._data[start : start + _MAX_NAME_LENGTH])
        end = found.find(0)
        return found[:end].decode("utf-8", "replace") if end >= 0 else ""


def _parse_header(data: memoryview, source: str) -> _Layout:
    """Parse the header of any release.

    Raises:
        FormatError: it is not such a header, or truncated.
    """

    def wrong(message: str, offset: int = 0) -> FormatError:
        return FormatError(message, source=source, offset=offset)

    magic = bytes(data[:4])
    little = int.from_bytes(magic, "little") in _MAGICS
    release = _MAGICS.get(int.from_bytes(magic, "little" if little else "big"))
    if release is None or len(data) < _HEADER:
        raise wrong(f"no table of Go functions begins with {magic.hex()}")
    quantum, pointer_size = data[6], data[7]
    if data[4] or data[5] or quantum not in {1, 2, 4} or pointer_size not in {4, 8}:
        raise wrong("not a header of Go's", 4)
    fields = 1 if release < 16 else 7 if release < 18 else 8  # noqa: PLR2004 (see _MAGICS)
    size = fields * pointer_size
    if len(data) < _HEADER + size:
        raise wrong("the header is cut short", _HEADER)
    kind = np.dtype(("<" if little else ">") + f"u{pointer_size}")
    words = [int(word) for word in np.frombuffer(data, kind, fields, _HEADER)]
    if release < 16:  # noqa: PLR2004 (Go 1.16)
        table = _HEADER + pointer_size
        after = table + 2 * words[0] * pointer_size + pointer_size
        files = int.from_bytes(data[after : after + 4], "little" if little else "big")
        return _Layout(
            *(release, little, quantum, pointer_size, words[0], 0),
            *(0, 0, files, 0, table),
        )
    text_start = words[2] if release >= 18 else 0  # noqa: PLR2004 (Go 1.18)
    names, units, files, pc_values, table = words[-5:]
    return _Layout(
        *(release, little, quantum, pointer_size, words[0], text_start),
        *(names, units, files, pc_values, table),
    )
