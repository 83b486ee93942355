"""``__unwind_info``, written as ld64 does: a small index, and pages of entries.

Source: ``mach-o/compact_unwind_encoding.h``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import pack
from typing import NamedTuple

from machtrace.formats.macho.tables.compact_encoding import DWARF_SECTION_OFFSET
from machtrace.formats.macho.tables.unwind_info import (
    COMPRESSED_PAGE,
    MODE_MASK,
    REGULAR_PAGE,
    VERSION,
)

_HEADER_SIZE = 28
_INDEX_ENTRY_SIZE = 12
_REGULAR_HEADER_SIZE = 8
_REGULAR_ENTRY_SIZE = 8
_COMPRESSED_HEADER_SIZE = 12
_MAX_COMMON = 127
_MAX_ENCODINGS = 256
_MAX_DELTA = 1 << 24
PAGE_SIZE = 4096
"""Bytes of one page at most."""


class CompactEntry(NamedTuple):
    """From where on an encoding holds."""

    offset: int
    """An :data:`ImageOffset`."""
    encoding: int


def folded(entries: Sequence[CompactEntry], *, apart: frozenset[int]) -> list[CompactEntry]:
    """Entries in order, with only the first of those that follow each other and are equal.

    ``apart`` are modes whose encodings depend on the function's start, and so are not folded.
    """
    merged: list[CompactEntry] = []
    for entry in sorted(entries):
        mode = entry.encoding & MODE_MASK
        if merged and merged[-1].encoding == entry.encoding and mode not in apart:
            continue
        merged.append(entry)
    return merged


def write_unwind_info(
    entries: Sequence[CompactEntry],
    end: int,
    *,
    is_compressed: bool = True,
    page_size: int = PAGE_SIZE,
    dwarf_mode: int = 0x04000000,
) -> bytes:
    """Write the section.

    Args:
        entries: ascending by offset.
        end: the :data:`ImageOffset` where the last entry ceases to hold.
        is_compressed: the kind of pages.
        page_size: of one page at most, in bytes.
        dwarf_mode: encodings of this mode are different for each function, and never common.
    """
    common = _common_encodings(entries, dwarf_mode) if is_compressed else ()
    split = _compressed_pages if is_compressed else _regular_pages
    pages = list(split(entries, common, page_size))
    common_at = _HEADER_SIZE
    index_at = common_at + 4 * len(common)
    pages_at = index_at + _INDEX_ENTRY_SIZE * (len(pages) + 1)
    index, at = b"", pages_at
    for first, page in pages:
        index += pack("<3I", first, at, pages_at)
        at += len(page)
    index += pack("<3I", end, 0, pages_at)
    header = pack(
        "<7I", VERSION, common_at, len(common), index_at, 0, index_at, len(pages) + 1
    )  # no personality lies at the index
    return header + pack(f"<{len(common)}I", *common) + index + b"".join(p for _, p in pages)


def _common_encodings(entries: Sequence[CompactEntry], dwarf_mode: int) -> tuple[int, ...]:
    counts = Counter(entry.encoding for entry in entries if _is_shared(entry, dwarf_mode))
    often = [encoding for encoding, count in counts.most_common(_MAX_COMMON) if count > 1]
    return tuple(often)


def _is_shared(entry: CompactEntry, dwarf_mode: int) -> bool:
    return entry.encoding & MODE_MASK != dwarf_mode or not entry.encoding & DWARF_SECTION_OFFSET


def _regular_pages(
    entries: Sequence[CompactEntry], _: tuple[int, ...], page_size: int
) -> Iterator[tuple[int, bytes]]:
    room = (page_size - _REGULAR_HEADER_SIZE) // _REGULAR_ENTRY_SIZE
    for at in range(0, len(entries), room):
        chosen = entries[at : at + room]
        header = pack("<IHH", REGULAR_PAGE, _REGULAR_HEADER_SIZE, len(chosen))
        yield chosen[0].offset, header + b"".join(pack("<II", *entry) for entry in chosen)


def _compressed_pages(
    entries: Sequence[CompactEntry], common: tuple[int, ...], page_size: int
) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(entries):
        first = entries[at].offset
        numbers = {encoding: number for number, encoding in enumerate(common)}
        words: list[int] = []
        for entry in entries[at:]:
            added = entry.encoding not in numbers
            size = 4 * (len(words) + 1 + len(numbers) - len(common) + added)
            if (
                entry.offset - first >= _MAX_DELTA
                or _COMPRESSED_HEADER_SIZE + size > page_size
                or len(numbers) + added > _MAX_ENCODINGS
            ):
                break
            number = numbers.setdefault(entry.encoding, len(numbers))
            words.append(number << 24 | entry.offset - first)
        own = list(numbers)[len(common) :]
        encodings_at = _COMPRESSED_HEADER_SIZE + 4 * len(words)
        header = pack(
            "<I4H", COMPRESSED_PAGE, _COMPRESSED_HEADER_SIZE, len(words), encodings_at, len(own)
        )
        yield first, header + pack(f"<{len(words) + len(own)}I", *words, *own)
        at += len(words)


def gaps(
    functions: Sequence[tuple[int, int, int]], bounds: tuple[int, int]
) -> Iterator[CompactEntry]:
    """Entries of (start, size, encoding) of functions; where none is, an encoding of 0.

    Padding behind a function is no gap if another follows within 16 bytes.
    """
    start, end = bounds
    ordered = sorted(functions)
    if ordered and ordered[0][0] > start:
        yield CompactEntry(start, 0)
    for (at, size, encoding), (following, _, _) in pairwise((*ordered, (end, 0, 0))):
        yield CompactEntry(at, encoding)
        if following - at - size >= _ALIGNMENT:
            yield CompactEntry(at + size, 0)


_ALIGNMENT = 16
