"""The files of images as memory, at the addresses where a target has the images."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

from machtrace.formats.elf.contents import ElfFileContents, ElfMemoryContents
from machtrace.formats.elf.structs import PF_W
from machtrace.errors import MemoryReadError
from machtrace.formats.macho.contents import FileContents, MemoryContents
from machtrace.formats.macho.structs import VM_PROT_WRITE
from machtrace.model.address import Avma, FileOffset
from machtrace.model.image import BinaryImage, ImageList
from machtrace.model.symbol import FrameStatus
from machtrace.images.resolver import ImageResolver


class _Segment(NamedTuple):
    start: Avma
    size: int
    contents: FileContents | ElfFileContents
    offset: FileOffset


class ImageFileMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` of what files and memory have in common.

    That is what no process changes: code, constants, tables. A file is opened when its image's
    code or header is first asked for, and used only if it is known to be the image's.
    """

    __slots__ = ("_files", "_images", "_opened", "_segments")

    def __init__(self, images: ImageList, files: ImageResolver | None = None) -> None:
        self._images = images
        self._files = ImageResolver() if files is None else files
        self._opened: set[Avma] = set()
        self._segments: list[_Segment] = []

    def read(self, address: Avma, size: int, /) -> memoryview:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        image = self._images.find(address)
        if image is not None and image.load_address not in self._opened:
            self._opened.add(image.load_address)
            for segment in self._unchanging(image):
                insort(self._segments, segment, key=_start)
        index = bisect_right(self._segments, address, key=_start) - 1
        if index < 0 or size < 0:
            raise MemoryReadError(address, size)
        segment = self._segments[index]
        delta = address - segment.start
        if delta + size > segment.size:
            raise MemoryReadError(address, size)
        return segment.contents.read_file(FileOffset(segment.offset + delta), size)

    def _unchanging(self, image: BinaryImage) -> Iterator[_Segment]:
        contents = self._files.file(image)
        if isinstance(contents, FrameStatus | MemoryContents | ElfMemoryContents):
            return
        slide = image.load_address - contents.image.header_svma
        if isinstance(contents, ElfFileContents):
            for load in contents.image.load_segments:
                if load.file_size and not load.flags & PF_W:
                    yield _Segment(
                        Avma(load.address + slide), load.file_size, contents, load.offset
                    )
            return
        encryption = contents.image.encryption_info
        if encryption is not None and encryption.cryptid:
            return  # memory has it decrypted
        for part in contents.image.segments:
            size = min(part.filesize, part.vmsize)
            if size and not part.initprot & VM_PROT_WRITE:
                yield _Segment(Avma(part.vmaddr + slide), size, contents, part.fileoff)


def _start(segment: _Segment) -> Avma:
    return segment.start
