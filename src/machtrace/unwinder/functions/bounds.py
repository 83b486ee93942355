"""Where the functions of a Mach-O begin and end, from the best table that it has.

A stack of one thread needs a few functions of a table with hundreds of thousands. So the table is
read in C where that is built, and numpy is not imported for it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.macho.contents import MachOContents, read_table
from machtrace.model.address import Svma

_UNWIND_INFO = ("__TEXT", "__unwind_info")


class FunctionBounds:
    """Starts of functions, and the sections that end the last of each."""

    __slots__ = ("_section_starts", "_sections", "_starts")

    def __init__(self, starts: Sequence[int], sections: tuple[tuple[int, int], ...]) -> None:
        """``starts``: Svmas, ascending; ``sections``: (start, end) of those with code."""
        self._starts = starts
        self._sections = tuple(sorted(sections))
        self._section_starts = [start for start, _ in self._sections]

    @classmethod
    def of_macho(cls, contents: MachOContents) -> FunctionBounds:
        """From LC_FUNCTION_STARTS; where it is missing, from all else that shows starts.

        See :func:`machtrace.unwinder.functions.starts.starts_of`.
        """
        sections = code_ranges(contents)
        starts: Sequence[int] | None = _function_starts(contents)
        if starts is None and not _shows_starts(contents, sections):
            starts = ()  # of an image in memory of which hardly more than the header was captured
        elif starts is None or not _any_in(starts, sections):
            from machtrace.unwinder.functions.starts import starts_of

            starts = starts_of(contents, sections).data
        return cls(starts, sections)

    def at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """The (start, end) of the function that holds ``address``; None outside of them.

        Where there is no LC_FUNCTION_STARTS, and the symbols were stripped too, functions that
        follow each other may be one here.
        """
        section = bisect_right(self._section_starts, address) - 1
        if section < 0:
            return None
        low, high = self._sections[section]
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= high:
            return None
        start = self._starts[index]
        end = high
        if index + 1 < len(self._starts):
            end = min(high, self._starts[index + 1])
        return (Svma(start), Svma(end)) if start >= low else None


def code_ranges(contents: MachOContents) -> tuple[tuple[int, int], ...]:
    """The (start, end) of each section with code, in Svmas; ascending, and apart.

    Only as far as its segment has bytes, whatever size the section states; sections that overlap
    are one.
    """
    found: list[tuple[int, int]] = []
    for segment in contents.image.segments:
        size = min(segment.vmsize, segment.filesize)
        if not contents.is_loaded:
            size = min(size, max(0, len(contents.data) - segment.fileoff))
        for section in segment.sections:
            start = max(section.address, segment.vmaddr)
            end = min(section.end, segment.vmaddr + size)
            if section.is_code and start < end:
                found.append((start, end))
    ranges: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if ranges and low < ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(high, ranges[-1][1]))
        else:
            ranges.append((low, high))
    return tuple(ranges)


def _function_starts(contents: MachOContents) -> memoryview | None:
    """LC_FUNCTION_STARTS; None where there is a reason to look closer."""
    place, arch = contents.image.function_starts, contents.image.header.arch
    if place is None or arch is None or arch.is_arm:
        return None  # of arm the table says more than where functions start
    try:
        from machtrace._native._walk import function_starts
    except ImportError:
        return None
    try:
        data = read_table(contents, place.offset, place.size, "the table of function starts")
    except (FormatError, MemoryReadError):
        return None
    starts = function_starts(data, contents.image.header_svma)
    return None if starts is None else memoryview(starts).cast("Q")


def _shows_starts(contents: MachOContents, sections: Sequence[tuple[int, int]]) -> bool:
    """Whether any of what could show function starts can be read."""
    image = contents.image
    unwind, symtab, table = image.section(*_UNWIND_INFO), image.symtab, image.function_starts
    return (
        (table is not None and _can_be_read(contents.read_file, table.offset, table.size))
        or (unwind is not None and _can_be_read(contents.read_svma, unwind.address, unwind.size))
        or (symtab is not None and _can_be_read(contents.read_file, symtab.symoff, 1))
        or any(_can_be_read(contents.read_svma, low, high - low) for low, high in sections)
    )


def _can_be_read(read: Callable[..., object], place: int, size: int) -> bool:
    try:
        read(place, size)
    except MemoryReadError:
        return False
    return True


def _any_in(starts: Sequence[int], sections: tuple[tuple[int, int], ...]) -> bool:
    # Some linkers write a table that holds no more than the end of the header.
    for low, high in sections:
        index = bisect_left(starts, low)
        if index < len(starts) and starts[index] < high:
            return True
    return False
