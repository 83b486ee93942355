"""Selects the bytes to copy of an image that has no file on this machine.

A walk takes an image's headers, its unwind tables, and the code around addresses; names take its
symbols. What lies in a stack and looks like an address of an image's code may be one of a frame;
images without any such word are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from machtrace.formats.elf.image import ElfImage
from machtrace.formats.elf.structs import PF_W, PT_DYNAMIC, PT_GNU_EH_FRAME
from machtrace.formats.macho.image import MachOImage
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage
from machtrace.model.memory import MemoryRegion

WHOLE = 1 << 21
"""Bytes up to which an image's read-only parts are copied whole."""
LARGEST_TABLE = 1 << 23
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
        if part.type == PT_DYNAMIC and part.file_size <= LARGEST_TABLE:
            yield part.address, part.file_size
        if part.type == PT_GNU_EH_FRAME:
            # The frames are in the same segment, before or behind their index.
            holder = next((s for s in segments if s.address <= part.address < s.end), None)
            if holder is not None and not holder.is_executable:
                yield holder.address, min(holder.file_size, LARGEST_TABLE)
            elif part.memory_size <= LARGEST_TABLE:
                yield part.address, part.memory_size
    for segment in segments:
        # Dynamic symbols: before the code, in the segment with the headers.
        if not segment.is_executable and segment.address <= elf.header_svma + _HEADERS:
            yield segment.address, min(segment.file_size, LARGEST_TABLE)


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
            if section.name in _TABLES and section.size <= LARGEST_TABLE:
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
        if not 0 < size <= LARGEST_TABLE:
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
    for start, size in sorted(one for one in ranges if one[1] > 0):
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
