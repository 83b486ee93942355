"""A Mach-O's bytes by stated address or file offset, in a file or in loaded memory."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from machtrace.errors import MachOError, MemoryReadError
from machtrace.formats.macho.image import MachOImage, parse_image
from machtrace.model.address import Avma, FileOffset, Svma
from machtrace.model.image import ImageFormat
from machtrace.model.memory import MemoryReader

_ADDRESS_BITS = (1 << 64) - 1


class MachOFileContents:
    """A thin Mach-O file, or a slice of a fat one.

    An :class:`~machtrace.model.memory.ImageContents`.
    """

    format: ClassVar[Literal[ImageFormat.MACHO]] = ImageFormat.MACHO
    is_loaded: ClassVar[Literal[False]] = False
    slide: ClassVar[Literal[0]] = 0

    def __init__(self, data: bytes | memoryview, source: str) -> None:
        """Parse the load commands and nothing else.

        Raises:
            MachOError: the header or a load command is malformed or truncated.
        """
        self.data = memoryview(data)
        """All bytes."""
        self.source = source
        """The name in errors."""
        self.image: MachOImage = parse_image(self._read_header, source)
        """The header and load commands."""

    def _read_header(self, offset: int, size: int) -> memoryview:
        if offset + size > len(self.data):
            raise MachOError(
                f"{size} bytes of header wanted, {max(0, len(self.data) - offset)} left",
                source=self.source,
                offset=offset,
            )
        return self.data[offset : offset + size]

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """Return exactly ``size`` bytes at a stated address.

        Raises:
            MemoryReadError: any of them is in no segment, or is one of the zeros at a segment's
                end that no file has.
        """
        for segment in self.image.segments:
            begin = address - segment.vmaddr
            if begin >= 0 and size >= 0 and begin + size <= min(segment.filesize, segment.vmsize):
                start = segment.fileoff + begin
                if start + size <= len(self.data):
                    return self.data[start : start + size]
        raise MemoryReadError(address, size)

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        """Return exactly ``size`` bytes at a file offset (in a fat file: in the slice).

        Raises:
            MemoryReadError: any of them is beyond the end of the file.
        """
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise MemoryReadError(offset, size)
        return self.data[offset : offset + size]


class MachOMemoryContents:
    """A Mach-O as loaded in a target. An :class:`~machtrace.model.memory.ImageContents`.

    Only the header, the load commands and requested bytes are read.
    """

    format: ClassVar[Literal[ImageFormat.MACHO]] = ImageFormat.MACHO
    is_loaded: ClassVar[Literal[True]] = True

    def __init__(self, memory: MemoryReader, load_address: Avma, source: str) -> None:
        """Parse the load commands at ``load_address``.

        Raises:
            MachOError: the header or a load command is malformed.
            MemoryReadError: they cannot be read.
        """
        self._memory = memory
        self.load_address = load_address
        """The address of the header."""
        self.source = source
        """The name in errors."""
        self.image: MachOImage = parse_image(self._read_header, source)
        """The header and load commands."""

    @property
    def slide(self) -> int:
        """The difference from an :data:`Svma` to its :data:`Avma`; may be negative."""
        return self.load_address - self.image.header_svma

    def _read_header(self, offset: int, size: int) -> memoryview:
        return memoryview(self._memory.read(Avma(self.load_address + offset), size))

    def read_svma(self, address: Svma, size: int, /) -> memoryview:
        """Return exactly ``size`` bytes at a stated address.

        Raises:
            MemoryReadError: any of them is in no segment, or cannot be read.
        """
        for segment in self.image.segments:
            begin = address - segment.vmaddr
            if begin >= 0 and size >= 0 and begin + size <= segment.vmsize:
                avma = Avma((address + self.slide) & _ADDRESS_BITS)
                return memoryview(self._memory.read(avma, size))
        raise MemoryReadError(address, size)

    def read_around(self, address: Svma, size: int, /) -> memoryview:
        """Return exactly ``size`` bytes at a slid address, in the image or outside of it.

        Raises:
            MemoryReadError: any of them cannot be read.
        """
        return memoryview(self._memory.read(Avma((address + self.slide) & _ADDRESS_BITS), size))

    def read_file(self, offset: FileOffset, size: int, /) -> memoryview:
        """Return exactly ``size`` bytes at a file offset, from the segment mapped from there.

        Offsets of an image in a shared cache count from the start of the cache's file, as those
        of its segments do.

        Raises:
            MemoryReadError: any of them is in no segment, or cannot be read.
        """
        for segment in self.image.segments:
            begin = offset - segment.fileoff
            if begin >= 0 and size >= 0 and begin + size <= min(segment.filesize, segment.vmsize):
                return self.read_svma(Svma(segment.vmaddr + begin), size)
        raise MemoryReadError(offset, size)


MachOContents: TypeAlias = MachOFileContents | MachOMemoryContents


def read_table(contents: MachOContents, offset: int, size: int, table: str) -> memoryview:
    """Return a table that a load command refers to, mostly in ``__LINKEDIT``.

    Raises:
        MachOError: the table is not wholly in the file, or in no segment of a loaded image.
        MemoryReadError: it is in a loaded segment that cannot be read.
    """
    try:
        return contents.read_file(FileOffset(offset), size)
    except MemoryReadError:
        if not contents.is_loaded:
            where = f"the file ends at {len(contents.data):#x}"
        elif any(
            segment.fileoff <= offset and offset + size <= segment.fileoff + segment.filesize
            for segment in contents.image.segments
        ):
            raise
        else:
            where = "no segment holds all of that"
        raise MachOError(
            f"{table} should be {size} bytes, up to {offset + size:#x}, but {where}",
            source=contents.source,
            offset=offset,
            remedy="copy or build the file again; it was cut short or its load commands altered",
        ) from None


def is_encrypted(contents: MachOContents, address: Svma, size: int) -> bool:
    """Return whether any of ``size`` bytes at a stated address are encrypted.

    Programs from the App Store have most of ``__TEXT`` encrypted (FairPlay): code, and the unwind
    tables after it. The kernel decrypts pages as it loads them: in memory they are plain,
    although the load command is the same (``mach-o/loader.h``,
    ``encryption_info_command``).
    """
    command = contents.image.encryption_info
    if command is None or command.cryptid == 0 or contents.is_loaded:
        return False
    segment = contents.image.segment_at(address)
    if segment is None:
        return False
    start = segment.fileoff + (address - segment.vmaddr)
    return start < command.cryptoff + command.cryptsize and command.cryptoff < start + size
