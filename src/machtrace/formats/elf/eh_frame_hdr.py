"""``.eh_frame_hdr``: a table of the FDEs by address (Linux Standard Base, Core, section 10.6.2).

A stack needs a few entries of a table that may have hundreds of thousands. So one is found by
bisection of the file's bytes; numpy is imported for whole columns only.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from machtrace.errors import ElfError, MemoryReadError
from machtrace.formats.dwarf.cfi_records import CallFrameSection
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.structs import PT_GNU_EH_FRAME, ElfLayout
from machtrace.frozen import dataclass
from machtrace.model.address import Svma

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Column: TypeAlias = npt.NDArray[np.uint64]

_VERSION = 1
_OMIT = 0xFF
_Code: TypeAlias = Literal["H", "I", "Q", "h", "i", "q"]
"""A :mod:`struct` code."""
_NUMBERS: dict[int, _Code] = {0x2: "H", 0x3: "I", 0x4: "Q", 0xA: "h", 0xB: "i", 0xC: "q"}
"""By the low half of a ``DW_EH_PE_*``, for encodings of a fixed size."""
_SIZES: dict[_Code, int] = {"H": 2, "I": 4, "Q": 8, "h": 2, "i": 4, "q": 8}
_POINTER, _SIGNED_POINTER = 0x0, 0x8
_FORM, _APPLICATION = 0x0F, 0xF0
_ABSOLUTE, _PC_RELATIVE, _DATA_RELATIVE = 0x00, 0x10, 0x30
_HEADER_LIMIT = 4 + 2 * 8


@dataclass(frozen=True, slots=True)
class EhFrameHeader:
    """The addresses of ``.eh_frame`` and of its search table."""

    address: Svma
    """The header's own address."""
    eh_frame: Svma | None
    """The address of ``.eh_frame``; None if the header omits it."""
    table: Svma
    count: int
    """Entries in the table; 0 without a table."""
    table_encoding: int
    """``DW_EH_PE_*``."""


class SearchTable:
    """The search table: every FDE, by the address at which its code starts.

    A function that was split has one for each part. Linkers sort the table; in one that is not
    sorted :meth:`find` may miss an FDE.
    """

    __slots__ = ("_base", "_mask", "_numbers", "_section", "_starts")

    def __init__(self, numbers: memoryview, base: int, mask: int, section: int) -> None:
        """Store pairs of numbers: the start of code, the address of its FDE.

        Args:
            numbers: of any integer format, in this machine's byte order.
            base: the address that the numbers are relative to.
            mask: the largest address.
            section: the Svma of ``.eh_frame``, which offsets are relative to.
        """
        self._numbers = numbers
        self._base = base
        self._mask = mask
        self._section = section
        self._starts: Sequence[int] = numbers[::2]
        if self._starts[0] + base < 0 or self._starts[-1] + base > mask:
            # Some addresses wrap around, which no linker writes.
            self._starts = [((start + base) & mask) - base for start in self._starts]

    def find(self, address: int) -> int | None:
        """Return the section offset of the last FDE that starts at or before ``address``.

        The FDE may end before ``address``. None if all start after it.
        """
        index = bisect_right(self._starts, address - self._base) - 1
        if index < 0:
            return None
        # Modulo 2**64, as the columns have it: an FDE before the section is out of its bounds.
        fde = (self._numbers[2 * index + 1] + self._base) & self._mask
        return int(fde - self._section) & 0xFFFFFFFFFFFFFFFF

    def bounds(self, address: int) -> tuple[int, int | None] | None:
        """Return the last start of code up to ``address``, and the next; None if all are after it.

        The next is None after the last.
        """
        index = bisect_right(self._starts, address - self._base)
        if not index:
            return None
        following = self._starts[index] + self._base if index < len(self._starts) else None
        return self._starts[index - 1] + self._base, following

    @property
    def starts(self) -> Column:
        """The Svmas at which code starts, ascending."""
        return self._columns()[0]

    @property
    def offsets(self) -> Column:
        """The section offset of each FDE."""
        return self._columns()[1]

    def _columns(self) -> tuple[Column, Column]:
        import numpy as np

        pairs = np.asarray(self._numbers).reshape(-1, 2)
        # Through the signed type first, so that negative numbers wrap.
        wide = pairs.astype(np.int64 if pairs.dtype.kind == "i" else np.uint64).astype(np.uint64)
        wide = (wide + np.uint64(self._base)) & np.uint64(self._mask)
        starts, offsets = np.ascontiguousarray(wide[:, 0]), wide[:, 1] - np.uint64(self._section)
        if bool((starts[1:] < starts[:-1]).any()):
            order = np.argsort(starts, kind="stable")
            starts, offsets = starts[order], offsets[order]
        return starts, offsets


def read_eh_frame_header(contents: ElfContents) -> EhFrameHeader | None:
    """Read the header in the section or ``PT_GNU_EH_FRAME``; return None without either.

    Raises:
        ElfError: it is malformed, or claims more entries than it has room for.
        MemoryReadError: it could not be read.
    """
    extent = _extent(contents)
    return None if extent is None else _HeaderReader(contents, *extent).read()


def read_search_table(
    contents: ElfContents, header: EhFrameHeader, section: Svma | None = None
) -> SearchTable | None:
    """Read the table of ``header``; return None without one, or if its encoding is not searchable.

    Args:
        contents: the image.
        header: its header.
        section: the address of ``.eh_frame``, if not the header's.

    Raises:
        MemoryReadError: it could not be read.
    """
    layout, encoding = contents.image.layout, header.table_encoding
    code = _number_code(encoding, layout)
    base = {_ABSOLUTE: 0, _DATA_RELATIVE: header.address}.get(encoding & _APPLICATION)
    if not header.count or code is None or base is None:
        return None
    data = contents.read_svma(header.table, 2 * header.count * _SIZES[code])
    if layout.little_endian == (sys.byteorder == "little"):
        numbers = memoryview(data).cast("B").cast(code)
    else:
        swapped = array(code, bytes(data))
        swapped.byteswap()
        numbers = memoryview(swapped)
    mask = (1 << (8 * layout.pointer_size)) - 1
    return SearchTable(numbers, base, mask, section or header.eh_frame or 0)


def eh_frame_section(
    contents: ElfContents, header: EhFrameHeader | None
) -> CallFrameSection | None:
    """Return ``.eh_frame``, by its section header or else by ``header``; None without either."""
    image = contents.image
    stated = image.section(".eh_frame")
    end: Svma | None
    if stated is not None:
        address, end = stated.address, stated.end if stated.has_bytes else None
    elif header is not None and header.eh_frame is not None:
        address, end = header.eh_frame, image.loaded_end(header.eh_frame)
    else:
        return None
    if end is None or end <= address:
        return None
    return CallFrameSection(
        read=lambda offset, size: contents.read_svma(Svma(address + offset), size),
        size=end - address,
        arch=image.arch,
        source=f"{contents.source} .eh_frame",
        address=address,
        little_endian=image.layout.little_endian,
        ends_at_terminator=stated is None,
    )


class DescribedCode:
    """The code that FDEs describe, by the search table; none without a usable one."""

    def __init__(self, contents: ElfContents) -> None:
        """Read the table. Raises nothing."""
        import numpy as np

        self.starts: Column = np.zeros(0, np.uint64)
        """Svmas, ascending and unique."""
        self._offsets: Column = self.starts
        self._section: CallFrameSection | None = None
        try:
            header = read_eh_frame_header(contents)
            section = eh_frame_section(contents, header)
            address = None if section is None else section.address
            table = None if header is None else read_search_table(contents, header, address)
        except (ElfError, MemoryReadError):
            return
        if table is not None:
            self.starts, rows = np.unique(table.starts, return_index=True)
            self._offsets, self._section = table.offsets[rows], section

    def ends(self, rows: npt.NDArray[np.intp]) -> Column:
        """Return the Svmas at which the code from some of the starts ends; the last if unknown."""
        import numpy as np

        from machtrace.formats.dwarf.frame_index import described_sizes

        starts, last = self.starts[rows], np.uint64(2**64 - 1)
        sizes = np.zeros(len(rows), np.uint64)
        if self._section is not None:
            with suppress(MemoryReadError):
                sizes = described_sizes(self._section, self._offsets[rows])
        is_known = (sizes > 0) & (sizes <= last - starts)
        ends: Column = np.where(is_known, starts + sizes, last)
        return ends


def _extent(contents: ElfContents) -> tuple[Svma, int] | None:
    section = contents.image.section(".eh_frame_hdr")
    if section is not None:
        # A file of debug information has the program headers of the program, but not the bytes.
        return (section.address, section.size) if section.has_bytes and section.size else None
    segment = contents.image.segment(PT_GNU_EH_FRAME)
    if segment is not None and segment.file_size:
        return segment.address, segment.file_size
    return None


def _number_code(encoding: int, layout: ElfLayout) -> _Code | None:
    form = encoding & _FORM
    if encoding != _OMIT and form in (_POINTER, _SIGNED_POINTER):
        if form == _SIGNED_POINTER:
            return "q" if layout.is_64 else "i"
        return "Q" if layout.is_64 else "I"
    return _NUMBERS.get(form)


class _HeaderReader:
    """Reads one header."""

    __slots__ = ("_address", "_at", "_contents", "_head", "_size")

    def __init__(self, contents: ElfContents, address: Svma, size: int) -> None:
        self._contents = contents
        self._address = address
        self._size = size
        self._head = contents.read_svma(address, min(size, _HEADER_LIMIT))
        self._at = 4

    def read(self) -> EhFrameHeader:
        if len(self._head) < self._at:
            raise self._fail("header cut short")
        version, eh_frame_encoding, count_encoding, table_encoding = self._head[:4]
        if version != _VERSION:
            raise self._fail(f"unknown version {version}")
        eh_frame = self._pointer(eh_frame_encoding)
        count = self._pointer(count_encoding) or 0
        code = _number_code(table_encoding, self._contents.image.layout)
        if code is not None:
            room = (self._size - self._at) // (2 * _SIZES[code])
            if count > room:
                raise self._fail(f"{count} entries, room for {room}")
        return EhFrameHeader(
            address=self._address,
            eh_frame=None if eh_frame is None else Svma(eh_frame),
            table=Svma(self._address + self._at),
            count=count,
            table_encoding=table_encoding,
        )

    def _pointer(self, encoding: int) -> int | None:
        if encoding == _OMIT:
            return None
        layout = self._contents.image.layout
        code = _number_code(encoding, layout)
        # "Data" is the header itself, here and only here.
        base = {
            _ABSOLUTE: 0,
            _PC_RELATIVE: self._address + self._at,
            _DATA_RELATIVE: self._address,
        }.get(encoding & _APPLICATION)
        if code is None or base is None:
            raise self._fail(f"unknown encoding {encoding:#04x}")
        end = self._at + _SIZES[code]
        if end > len(self._head):
            raise self._fail("header cut short")
        number = int.from_bytes(
            self._head[self._at : end],
            "little" if layout.little_endian else "big",
            signed=code.islower(),
        )
        self._at = end
        return (number + base) & ((1 << (8 * layout.pointer_size)) - 1)

    def _fail(self, message: str) -> ElfError:
        source = f"{self._contents.source} .eh_frame_hdr"
        return ElfError(message, source=source, offset=self._at)
