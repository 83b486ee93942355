"""``.eh_frame_hdr``: a table of the FDEs by address (Linux Standard Base, Core, section 10.6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from machtrace.errors import ElfError, MemoryReadError
from machtrace.formats.elf.contents import ElfContents
from machtrace.formats.elf.structs import PT_GNU_EH_FRAME, ElfLayout
from machtrace.model.address import Svma

_VERSION = 1
_OMIT = 0xFF
_NUMBERS = {0x2: "u2", 0x3: "u4", 0x4: "u8", 0xA: "i2", 0xB: "i4", 0xC: "i8"}
"""By the low half of a ``DW_EH_PE_*``: those of a size that the encoding itself gives."""
_POINTER, _SIGNED_POINTER = 0x0, 0x8
_FORM, _APPLICATION = 0x0F, 0xF0
_ABSOLUTE, _PC_RELATIVE, _DATA_RELATIVE = 0x00, 0x10, 0x30
_HEADER_LIMIT = 4 + 2 * 8


@dataclass(frozen=True, slots=True)
class EhFrameHeader:
    """Where ``.eh_frame`` is, and where the table of what it holds."""

    address: Svma
    """Of the header itself."""
    eh_frame: Svma | None
    """Of ``.eh_frame``'s first byte; None where the header does not say."""
    table: Svma
    count: int
    """Entries in the table; 0 where there is none."""
    table_encoding: int
    """``DW_EH_PE_*``."""


@dataclass(frozen=True, slots=True)
class FrameTable:
    """The table: every FDE, by the address at which its code starts."""

    starts: npt.NDArray[np.uint64]
    """Svmas of first instructions, ascending: where functions start, and the parts of functions
    that were split."""
    descriptions: npt.NDArray[np.uint64]
    """Svma of each one's FDE."""


def read_eh_frame_header(contents: ElfContents) -> EhFrameHeader | None:
    """The header that the section or ``PT_GNU_EH_FRAME`` names; None where there is none.

    Raises:
        ElfError: it is malformed, or claims more entries than it has room for.
        MemoryReadError: it could not be read.
    """
    place = _place(contents)
    return None if place is None else _HeaderReader(contents, *place).read()


def read_frame_table(contents: ElfContents, header: EhFrameHeader) -> FrameTable | None:
    """The table of ``header``; None where there is none, or it is encoded unsearchably.

    Raises:
        MemoryReadError: it could not be read.
    """
    layout, encoding = contents.image.layout, header.table_encoding
    dtype = _number_type(encoding, layout)
    base = {_ABSOLUTE: 0, _DATA_RELATIVE: header.address}.get(encoding & _APPLICATION)
    if not header.count or dtype is None or base is None:
        return None
    data = contents.read_svma(header.table, 2 * header.count * dtype.itemsize)
    pairs = np.frombuffer(data, dtype).reshape(header.count, 2)
    # Through the signed type first, so that what is negative wraps round.
    wide = pairs.astype(np.int64 if dtype.kind == "i" else np.uint64).astype(np.uint64)
    wide = (wide + np.uint64(base)) & np.uint64((1 << (8 * layout.pointer_size)) - 1)
    starts, descriptions = np.ascontiguousarray(wide[:, 0]), np.ascontiguousarray(wide[:, 1])
    if bool((starts[1:] < starts[:-1]).any()):
        order = np.argsort(starts, kind="stable")
        starts, descriptions = starts[order], descriptions[order]
    return FrameTable(starts, descriptions)


def function_starts(contents: ElfContents) -> npt.NDArray[np.uint64] | None:
    """Svmas at which code with its own FDE starts, ascending, each once.

    A function that was split has one for each part. None where the image has no table or an
    unusable one. Raises nothing.
    """
    try:
        header = read_eh_frame_header(contents)
        table = None if header is None else read_frame_table(contents, header)
    except (ElfError, MemoryReadError):
        return None
    return None if table is None else np.unique(table.starts)


def _place(contents: ElfContents) -> tuple[Svma, int] | None:
    section = contents.image.section(".eh_frame_hdr")
    if section is not None:
        # A file of debug information has the program header of the program, and no bytes.
        return (section.address, section.size) if section.has_bytes and section.size else None
    segment = contents.image.segment(PT_GNU_EH_FRAME)
    if segment is not None and segment.file_size:
        return segment.address, segment.file_size
    return None


def _number_type(encoding: int, layout: ElfLayout) -> np.dtype[Any] | None:
    form = encoding & _FORM
    if encoding != _OMIT and form in (_POINTER, _SIGNED_POINTER):
        name = f"{'i' if form == _SIGNED_POINTER else 'u'}{layout.pointer_size}"
    else:
        name = _NUMBERS.get(form, "")
    return np.dtype(layout.byte_order + name) if name else None


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
        dtype = _number_type(table_encoding, self._contents.image.layout)
        if dtype is not None:
            room = (self._size - self._at) // (2 * dtype.itemsize)
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
        dtype = _number_type(encoding, layout)
        # "Data" is the header itself, here and only here.
        base = {
            _ABSOLUTE: 0,
            _PC_RELATIVE: self._address + self._at,
            _DATA_RELATIVE: self._address,
        }.get(encoding & _APPLICATION)
        if dtype is None or base is None:
            raise self._fail(f"unknown encoding {encoding:#04x}")
        end = self._at + dtype.itemsize
        if end > len(self._head):
            raise self._fail("header cut short")
        number = int(np.frombuffer(self._head[self._at : end], dtype)[0])
        self._at = end
        return (number + base) & ((1 << (8 * layout.pointer_size)) - 1)

    def _fail(self, message: str) -> ElfError:
        source = f"{self._contents.source} .eh_frame_hdr"
        return ElfError(message, source=source, offset=self._at)
