"""Copying what walks and names take of images that no file of this machine has.

The memory is that of a remote process; many ranges are requested at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import PF_W, PT_DYNAMIC, PT_GNU_EH_FRAME
from machtrace.formats.macho.contents import MachOMemoryContents
from machtrace.formats.macho.image import MachOImage
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion, without_overlap
from machtrace.targets.shared.paged_memory import MemoryOfRanges, PagedMemory

# --- Selects the bytes to copy of an image that has no file on this machine ---
#
# A walk takes an image's headers, its unwind tables, and the code around addresses; names take its
# symbols. What lies in a stack and looks like an address of an image's code may be one of a frame;
# images without any such word are left alone.

WHOLE = 1 << 21
"""Bytes up to which an image's read-only parts are copied whole."""
MAX_TABLE_SIZE = 1 << 23
"""Bytes of one table, above which it is left out."""
_BEFORE, _BEHIND = 1 << 13, 1 << 12
"""Bytes of code before and behind an address: functions are mostly shorter."""
_HEADERS = 1 << 12
_TABLES = ("__unwind_info", "__eh_frame", "__stubs", "__auth_stubs", "__stub_helper")
_SYMBOL = {8: 16, 4: 12}
"""Bytes of a ``nlist`` by pointer size."""

Range = tuple[int, int]
"""Address (Svma where it is of an image's own tables) and size."""


def pointers_in(
    stacks: Iterable[MemoryRegion], registers: Iterable[int], arch: Arch, mask: PacMask
) -> NDArray[np.uint64]:
    """Return the distinct words of ``stacks`` and ``registers``, ascending, without signatures."""
    size = arch.pointer_size
    columns = [np.fromiter((r & ((1 << 64) - 1) for r in registers), np.uint64)]
    for stack in stacks:
        skipped = -stack.start % size
        end = skipped + max(0, len(stack.data) - skipped) // size * size
        words = np.frombuffer(memoryview(stack.data)[skipped:end], np.dtype(f"<u{size}"))
        columns.append(np.unique(words).astype(np.uint64))
    return np.unique(np.concatenate(columns) & np.uint64(mask.bits & ((1 << 64) - 1)))


def within(pointers: NDArray[np.uint64], image: BinaryImage) -> list[int]:
    """Return the addresses in ``pointers``, ascending, that are in ``image``."""
    first = np.searchsorted(pointers, np.uint64(image.load_address))
    last = np.searchsorted(pointers, np.uint64(max(image.load_address, image.end - 1)), "right")
    return [int(word) for word in pointers[first:last]]


def elf_ranges(elf: ElfImage, addresses: Sequence[int]) -> Iterator[Range]:
    """Yield the ranges (Svma, size) to copy of an ELF image whose ``addresses`` may be in use."""
    segments = [s for s in elf.load_segments if not s.flags & PF_W and s.file_size]
    if sum(s.file_size for s in segments) <= WHOLE:
        yield from ((s.address, s.file_size) for s in segments)
        return
    yield elf.header_svma, _HEADERS
    yield from _around(addresses)
    for part in elf.segments:
        if part.type == PT_DYNAMIC and part.file_size <= MAX_TABLE_SIZE:
            yield part.address, part.file_size
        if part.type == PT_GNU_EH_FRAME:
            # The frames are in the same segment, before or behind their index.
            holder = next((s for s in segments if s.address <= part.address < s.end), None)
            if holder is not None and not holder.is_executable:
                yield holder.address, min(holder.file_size, MAX_TABLE_SIZE)
            elif part.memory_size <= MAX_TABLE_SIZE:
                yield part.address, part.memory_size
    for segment in segments:
        # Dynamic symbols: before the code, in the segment with the headers.
        if not segment.is_executable and segment.address <= elf.header_svma + _HEADERS:
            yield segment.address, min(segment.file_size, MAX_TABLE_SIZE)


def macho_ranges(image: MachOImage, addresses: Sequence[int]) -> Iterator[Range]:
    """Yield the ranges (Svma, size) to copy of a Mach-O whose ``addresses`` may be in use."""
    text = image.text_segment
    if text is None:
        return
    yield text.vmaddr, min(text.vmsize, image.header.sizeofcmds + _HEADERS)
    if text.vmsize <= WHOLE:
        yield text.vmaddr, text.vmsize
    else:
        yield from _around(addresses)
        for section in image.sections:
            if section.name in _TABLES and section.size <= MAX_TABLE_SIZE:
                yield section.address, section.size
    tables: list[tuple[int, int]] = [
        (t.offset, t.size) for t in (image.function_starts, image.exports_trie) if t
    ]
    if image.symtab is not None:
        symbols = image.symtab.nsyms * _SYMBOL[image.arch.pointer_size]
        tables += [
            (image.symtab.symoff, symbols),
            (image.symtab.stroff, image.symtab.strsize),
        ]
    for offset, size in tables:
        if not 0 < size <= MAX_TABLE_SIZE:
            continue
        for segment in image.segments:
            begin = offset - segment.fileoff
            if begin >= 0 and begin + size <= segment.filesize:
                yield segment.vmaddr + begin, size
                break


def _around(addresses: Sequence[int]) -> Iterator[Range]:
    for address in addresses:
        start = max(0, address - _BEFORE)
        yield start, address + _BEHIND - start


def merged(ranges: Iterable[Range], limit: int) -> list[Range]:
    """``ranges`` by address, those that overlap or adjoin as one, as far as ``limit`` bytes go."""
    joined: list[list[int]] = []
    for start, size in sorted(range_ for range_ in ranges if range_[1] > 0):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], start + size)
        else:
            joined.append([start, start + size])
    ranges_kept: list[Range] = []
    for start, end in joined:
        size = min(end - start, limit)
        if size <= 0:
            break
        ranges_kept.append((start, size))
        limit -= size
    return ranges_kept


# --- Copying what walks and names take of images that no file of this machine has ---

COPY_LIMIT = 1 << 26
"""Bytes of all images together that are copied of one process."""


class ImageCopier:
    """Copies bytes of one process's images and caches them."""

    def __init__(
        self, memory: MemoryOfRanges, pages: PagedMemory, arch: Arch, mask: PacMask
    ) -> None:
        self._memory = memory
        self._pages = pages
        self._arch = arch
        self._mask = mask
        self._copied: dict[BinaryImage, list[MemoryRegion]] = {}
        self._left = COPY_LIMIT

    def copy_used(
        self,
        images: ImageList,
        elves: Mapping[Avma, ElfImage],
        stacks: Iterable[MemoryRegion],
        registers: Iterable[int],
    ) -> list[MemoryRegion]:
        """Copy the bytes that unwinding and symbolication need of images without a file here.

        Args:
            images: of the process.
            elves: headers of those that are ELF, by load address.
            stacks: what was copied of the threads.
            registers: what they held.

        Raises:
            ConnectionLostError, RemoteProtocolError: the request failed.
        """
        pointers = pointers_in(stacks, registers, self._arch, self._mask)
        lacking = [
            (image, [address - image.slide for address in addresses])
            for image in images
            if image.local_path is None and (addresses := within(pointers, image))
        ]
        machos = [image for image, _ in lacking if image.format is ImageFormat.MACHO]
        parsed = self._pages.gather(lambda: {macho: self.macho(macho) for macho in machos})
        wanted: list[tuple[BinaryImage, tuple[int, int]]] = []
        for image, addresses in lacking:
            contents, elf = parsed.get(image), elves.get(image.load_address)
            ranges: list[tuple[int, int]] = []
            if contents is not None:
                ranges = list(macho_ranges(contents.image, addresses))
            elif elf is not None:
                ranges = list(elf_ranges(elf, addresses))
            wanted += [(image, macho) for macho in self._affordable(image, ranges)]
        found = self._memory.read_many([place for _, place in wanted])
        for (image, (start, _)), data in zip(wanted, found, strict=True):
            self._copied.setdefault(image, []).append(MemoryRegion(Avma(start), data))
        return without_overlap(*(self._copied.get(image, ()) for image in images))

    def macho(self, image: BinaryImage) -> MachOMemoryContents | None:
        """Read the load commands of a Mach-O, from pages; None if they cannot be read."""
        try:
            return MachOMemoryContents(self._pages, image.load_address, image.path)
        except (FormatError, MemoryReadError):
            return None

    def _affordable(
        self, image: BinaryImage, ranges: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:

        slid = [(start + image.slide, size) for start, size in ranges if start + image.slide >= 0]
        held = self._copied.get(image, ())
        affordable = merged(
            (
                (start, size)
                for start, size in slid
                if not any(one.start <= start and start + size <= one.end for one in held)
            ),
            self._left,
        )
        self._left -= sum(size for _, size in affordable)
        return affordable
