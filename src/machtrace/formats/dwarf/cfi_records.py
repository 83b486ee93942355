"""The records of call-frame information: CIEs and FDEs.

``.debug_frame`` is defined by DWARF 5, section 6.4.1; ``.eh_frame`` is its variant in the Linux
Standard Base, Core, section 10.6, which Mach-O's ``__TEXT,__eh_frame`` follows, too.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import NamedTuple

from machtrace.errors import DwarfError
from machtrace.formats.cursor import ByteCursor
from machtrace.formats.dwarf.pointer_encoding import (
    ABSOLUTE,
    FORM,
    OMIT,
    read_pointer,
    skip_pointer,
)
from machtrace.frozen import dataclass
from machtrace.model.address import Svma
from machtrace.model.arch import Arch

RECORD_LIMIT = 1 << 20
"""Bytes of one record; the longest real ones have some ten thousand. It limits what one lookup
reads from remote memory."""

_EXTENDED_LENGTH = 0xFFFFFFFF
"""The 64-bit length follows."""
_RESERVED_LENGTH = 0xFFFFFFF0
"""Lengths from here on are invalid, except the one above."""
_SEGMENT_VERSION = 4
"""From this version on a CIE states the sizes of addresses and segment selectors."""
_VERSIONS = frozenset({1, 3, 4})
_ADDRESS_SIZES = frozenset({4, 8})


@dataclass(frozen=True, slots=True)
class CallFrameSection:
    """A section of call-frame information: its bytes, and the base of its pointers."""

    read: Callable[[int, int], bytes | memoryview]
    """Returns the bytes at an offset of the section; raises MemoryReadError if there are fewer."""
    size: int
    """In bytes."""
    arch: Arch
    source: str
    """Its name in errors."""
    is_eh_frame: bool = True
    """False for ``.debug_frame``."""
    address: Svma = Svma(0)
    """The address of its first byte, when loaded."""
    little_endian: bool = True
    ends_at_terminator: bool = False
    """Whether :attr:`size` is only an upper bound, so that the first terminator is the end.
    Otherwise terminators may be anywhere, because linkers join sections."""

    def fail(self, message: str, offset: int) -> DwarfError:
        """Return the error for ``message`` at ``offset`` of the section."""
        return DwarfError(message, source=self.source, offset=offset)


class RecordHeader(NamedTuple):
    """The location of a record, and the CIE it refers to."""

    offset: int
    """The section offset of its length."""
    body: int
    """The offset after the CIE id or pointer."""
    end: int
    common: int | None
    """The offset of an FDE's CIE; None in a CIE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonInformation:
    """A CIE: the common properties of many functions."""

    offset: int
    version: int
    augmentation: str
    code_alignment: int
    """The factor of every advance."""
    data_alignment: int
    """The factor of every offset from the CFA."""
    return_column: int
    """The number of the register that holds the return address."""
    address_size: int
    """Bytes in an address."""
    pointer_encoding: int
    """``DW_EH_PE_*`` of the FDEs' addresses."""
    is_signal_frame: bool
    """``S``: whether the caller was interrupted."""
    program: bytes
    """The instructions for the initial row of every function."""
    program_offset: int
    """Their section offset, for messages."""

    @property
    def has_augmentation_data(self) -> bool:
        """``z``: whether FDEs have augmentation data after its length."""
        return self.augmentation.startswith("z")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameDescription:
    """An FDE: one function, or one part of a function."""

    offset: int
    common: CommonInformation
    start: Svma
    size: int
    """Bytes of code."""
    program: bytes
    """The instructions that change the row along the code."""
    program_offset: int

    @property
    def end(self) -> Svma:
        """The address after its last instruction."""
        return Svma(self.start + self.size)

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.start + self.size


def read_record_header(section: CallFrameSection, offset: int) -> RecordHeader | None:
    """Parse the start of the record at ``offset``; return None for a terminator (length 0).

    Raises:
        DwarfError: it is cut short, or longer than the section or :data:`RECORD_LIMIT`.
        MemoryReadError: it could not be read.
    """
    word = 4
    if not 0 <= offset <= section.size - word:
        raise section.fail("not a call-frame record", offset)
    head = section.read(offset, min(5 * word, section.size - offset))
    cursor = ByteCursor(head, source=section.source, error=DwarfError)
    little = section.little_endian
    length, is_wide = cursor.unsigned(word, little_endian=little), False
    if length == _EXTENDED_LENGTH:
        length, is_wide = cursor.unsigned(8, little_endian=little), True
    elif length >= _RESERVED_LENGTH:
        raise section.fail(f"record of reserved length {length:#x}", offset)
    if not length:
        return None
    field = offset + cursor.offset
    end = field + length
    if length > RECORD_LIMIT or end > section.size:
        raise section.fail(f"record of {length} bytes, {section.size - field} left", offset)
    # The id is as wide as the length in .debug_frame; in .eh_frame it always has 4 bytes.
    width = 8 if is_wide and not section.is_eh_frame else word
    if length < width:
        raise section.fail(f"record of {length} bytes, above the limit", offset)
    ident = cursor.unsigned(width, little_endian=little)
    if section.is_eh_frame:
        common = field - ident if ident else None
    else:
        common = None if ident == (1 << (8 * width)) - 1 else ident
    return RecordHeader(offset, field + width, end, common)


def read_common_information(section: CallFrameSection, offset: int) -> CommonInformation:
    """Parse the CIE at ``offset``.

    Raises:
        DwarfError: there is none, or it is malformed or of an unknown kind.
        MemoryReadError: it could not be read.
    """
    header = read_record_header(section, offset)
    if header is None or header.common is not None:
        raise section.fail("not a CIE", offset)
    return _CommonReader(section, header).read()


def read_frame_description(
    section: CallFrameSection,
    offset: int,
    commons: MutableMapping[int, CommonInformation] | None = None,
) -> FrameDescription:
    """Parse the FDE at ``offset``.

    ``commons``: CIEs parsed before, by offset; the FDE's own is added.

    Raises:
        DwarfError: there is none, or it or its CIE is malformed or of an unknown kind.
        MemoryReadError: it could not be read.
    """
    header = read_record_header(section, offset)
    if header is None or header.common is None:
        raise section.fail("not an FDE", offset)
    common = None if commons is None else commons.get(header.common)
    if common is None:
        common = read_common_information(section, header.common)
        if commons is not None:
            commons[header.common] = common
    cursor = _body(section, header)
    encoding, little = common.pointer_encoding, section.little_endian
    start = read_pointer(
        cursor,
        encoding,
        section.address + header.body,
        pointer_size=common.address_size,
        little_endian=little,
    )
    # The size is a plain number of the same form.
    size = read_pointer(
        cursor,
        encoding & FORM,
        0,
        pointer_size=common.address_size,
        little_endian=little,
    )
    if common.has_augmentation_data:
        cursor.take(cursor.uleb128())
    at = cursor.offset
    return FrameDescription(
        offset=offset,
        common=common,
        start=Svma(start),
        size=size,
        program=cursor.take(header.end - header.body - at),
        program_offset=header.body + at,
    )


def _body(section: CallFrameSection, header: RecordHeader) -> ByteCursor:
    """Return a cursor over the bytes after the CIE id or pointer, where its offsets start at 0."""
    return ByteCursor(
        section.read(header.body, header.end - header.body),
        source=f"{section.source}, record {header.offset:#x}",
        error=DwarfError,
    )


class _CommonReader:
    """Parses one CIE."""

    def __init__(self, section: CallFrameSection, header: RecordHeader) -> None:
        self._section = section
        self._header = header
        self._cursor = _body(section, header)
        self._address_size = section.arch.pointer_size
        self._encoding = ABSOLUTE
        self._is_signal_frame = False

    def read(self) -> CommonInformation:
        section, header, cursor = self._section, self._header, self._cursor
        version = cursor.take(1)[0]
        if version not in _VERSIONS:
            raise section.fail(f"CIE of unknown version {version}", header.offset)
        augmentation = cursor.c_string().decode("latin-1")
        if augmentation == "eh":  # GCC 2: a pointer to exception data, which is not needed.
            cursor.take(self._address_size)
        if version >= _SEGMENT_VERSION:
            self._address_size, selector_size = cursor.take(2)
            if self._address_size not in _ADDRESS_SIZES or selector_size:
                raise section.fail(
                    f"CIE with addresses of {self._address_size} bytes and segments"
                    f" of {selector_size}",
                    header.offset,
                )
        code_alignment, data_alignment = cursor.uleb128(), cursor.sleb128()
        return_column = cursor.take(1)[0] if version == 1 else cursor.uleb128()
        if augmentation.startswith("z"):
            end = cursor.uleb128() + cursor.offset
            self._read_augmentation(augmentation, end)
        elif augmentation != "eh":
            # Assemblers write S alone into .debug_frame.
            self._read_augmentation(augmentation, cursor.offset)
        at = cursor.offset
        return CommonInformation(
            offset=header.offset,
            version=version,
            augmentation=augmentation,
            code_alignment=code_alignment,
            data_alignment=data_alignment,
            return_column=return_column,
            address_size=self._address_size,
            pointer_encoding=self._encoding,
            is_signal_frame=self._is_signal_frame,
            program=cursor.take(header.end - header.body - at),
            program_offset=header.body + at,
        )

    def _read_augmentation(self, augmentation: str, end: int) -> None:
        """Leave the cursor at ``end``, where the instructions start."""
        cursor = self._cursor
        for letter in augmentation.removeprefix("z"):
            if letter == "R":
                self._encoding = cursor.take(1)[0]
            elif letter == "P":
                skip_pointer(cursor, cursor.take(1)[0], pointer_size=self._address_size)
            elif letter == "L":
                cursor.take(1)
            elif letter == "S":
                self._is_signal_frame = True
            elif letter not in "BG":  # arm64: signed with key B; a frame of tagged memory
                raise self._fail(f"unknown augmentation {augmentation!r}")
        if self._encoding == OMIT or cursor.offset > end:
            raise self._fail(f"augmentation {augmentation!r} without its data")
        cursor.take(end - cursor.offset)

    def _fail(self, message: str) -> DwarfError:
        return self._section.fail(message, self._header.offset)
