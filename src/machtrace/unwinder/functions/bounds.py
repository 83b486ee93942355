"""The bounds of a Mach-O's functions, from the best table that it has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from machtrace.errors import FormatError, MemoryReadError
from machtrace.formats.macho.contents import MachOContents
from machtrace.formats.macho.tables.function_starts import FunctionStarts, parse_function_starts
from machtrace.model.address import Svma

_UNWIND_INFO = ("__TEXT", "__unwind_info")


class FunctionBounds:
    """Starts of functions, and the sections that end the last of each."""

    __slots__ = ("_base", "_section_starts", "_sections", "_starts")

    def __init__(
        self, starts: Sequence[int], sections: tuple[tuple[int, int], ...], base: int = 0
    ) -> None:
        """Take the starts, ascending and relative to the Svma ``base``, and the code's sections.

        Args:
            starts: offsets from ``base``.
            sections: the (start, end) of each section with code, in Svmas.
            base: the Svma of the header, if starts are relative to it.
        """
        self._base = base
        self._starts = starts
        self._sections = tuple(sorted(sections))
        self._section_starts = [start for start, _ in self._sections]

    @classmethod
    def of_macho(cls, contents: MachOContents) -> FunctionBounds:
        """Return the bounds from LC_FUNCTION_STARTS; if that lists no code, from other tables.

        See :func:`machtrace.unwinder.functions.starts.starts_of`.
        """
        sections, base = code_ranges(contents), contents.image.header_svma
        try:
            listed = parse_function_starts(contents)
        except (FormatError, MemoryReadError):
            listed = FunctionStarts()
        if listed.holds_code((low - base, high - base) for low, high in sections):
            return cls(listed.offsets, sections, base)
        if not _shows_starts(contents, sections):
            return cls((), sections)  # of an image in memory, hardly more than the header
        from machtrace.unwinder.functions.starts import starts_of

        return cls(starts_of(contents, sections).data, sections)

    def at(self, address: Svma) -> tuple[Svma, Svma] | None:
        """Return the (start, end) of the function that holds ``address``.

        None outside of functions.

        Without LC_FUNCTION_STARTS and symbols, consecutive functions may be one.
        """
        section = bisect_right(self._section_starts, address) - 1
        if section < 0:
            return None
        low, high = self._sections[section]
        index = bisect_right(self._starts, address - self._base) - 1
        if index < 0 or address >= high:
            return None
        start = self._base + self._starts[index]
        end = high
        if index + 1 < len(self._starts):
            end = min(high, self._base + self._starts[index + 1])
        return (Svma(start), Svma(end)) if start >= low else None


def code_ranges(contents: MachOContents) -> tuple[tuple[int, int], ...]:
    """Return the (start, end) of each section with code, in Svmas; ascending, disjoint.

    A section ends with the bytes of its segment, whatever size it states; overlapping sections are
    merged.
    """
    sections: list[tuple[int, int]] = []
    for segment in contents.image.segments:
        size = min(segment.vmsize, segment.filesize)
        if not contents.is_loaded:
            size = min(size, max(0, len(contents.data) - segment.fileoff))
        for section in segment.sections:
            start = max(section.address, segment.vmaddr)
            end = min(section.end, segment.vmaddr + size)
            if section.is_code and start < end:
                sections.append((start, end))
    ranges: list[tuple[int, int]] = []
    for low, high in sorted(sections):
        if ranges and low < ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(high, ranges[-1][1]))
        else:
            ranges.append((low, high))
    return tuple(ranges)


def _shows_starts(contents: MachOContents, sections: Sequence[tuple[int, int]]) -> bool:
    """Return whether any table but the linker's list of functions can be read."""
    image = contents.image
    unwind, symtab = image.section(*_UNWIND_INFO), image.symtab
    return (
        (unwind is not None and _can_be_read(contents.read_svma, unwind.address, unwind.size))
        or (symtab is not None and _can_be_read(contents.read_file, symtab.symoff, 1))
        or any(_can_be_read(contents.read_svma, low, high - low) for low, high in sections)
    )


def _can_be_read(read: Callable[..., object], location: int, size: int) -> bool:
    try:
        read(location, size)
    except MemoryReadError:
        return False
    return True
