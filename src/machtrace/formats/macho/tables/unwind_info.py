"""``__TEXT,__unwind_info``: compact unwind encodings by image offset.

Source: ``mach-o/compact_unwind_encoding.h`` (``unwind_info_section_header`` and the structs
after it). Function offsets are from the Mach-O header, all others from the section.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum
from itertools import pairwise
from struct import Struct, unpack_from
from typing import TYPE_CHECKING

from machtrace.errors import MachOError
from machtrace.frozen import dataclass
from machtrace.model.address import ImageOffset

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

VERSION = 1
REGULAR_PAGE = 2
COMPRESSED_PAGE = 3

# Fields of every encoding.
HAS_LSDA = 0x40000000
PERSONALITY_MASK = 0x30000000
PERSONALITY_SHIFT = 28
MODE_MASK = 0x0F000000
MODE_SHIFT = 24

_HEADER = Struct("<7I")
_REGULAR_HEADER = Struct("<4x2H")
_COMPRESSED_HEADER = Struct("<4x4H")
_INDEX_ENTRY = Struct("<3I")
"""Function, page, LSDA."""
_REGULAR_ENTRY = Struct("<2I")
"""Function, encoding."""
_LSDA_ENTRY_SIZE = 8
_FUNCTION_MASK = 0xFFFFFF


class Arm64Mode(IntEnum):
    """``UNWIND_ARM64_MODE_*``."""

    FRAMELESS = 2
    DWARF = 3
    FRAME = 4


class X86Mode(IntEnum):
    """``UNWIND_X86_64_MODE_*``, and the same numbers of ``UNWIND_X86_MODE_*``."""

    FRAME = 1
    STACK_IMMEDIATE = 2
    STACK_INDIRECT = 3
    DWARF = 4


class ArmMode(IntEnum):
    """``UNWIND_ARM_MODE_*``; only armv7k has them."""

    FRAME = 1
    FRAME_D = 2
    DWARF = 4


@dataclass(frozen=True, slots=True)
class UnwindEntry:
    """One encoding and its range.

    The linker merges consecutive functions with equal encodings into one entry, except if the
    encoding depends on the function's start (DWARF, and the x86 indirect sizes).
    """

    function_offset: ImageOffset
    """The start: that of a function, possibly an earlier one."""
    end_offset: ImageOffset
    """The start of the next entry."""
    encoding: int
    """0 for no information."""


@dataclass(frozen=True, slots=True)
class _Page:
    """The layout of a second-level page."""

    first_function: int
    end_function: int
    entries: int
    """The offset in the section."""
    count: int
    is_compressed: bool
    encodings: int = 0
    encoding_count: int = 0


class UnwindInfo:
    """The section, searched without a copy."""

    __slots__ = (
        "_common",
        "_common_count",
        "_data",
        "_functions",
        "_lsda",
        "_pages",
        "_parsed",
        "_personalities",
        "source",
    )

    def __init__(self, data: bytes | memoryview, source: str) -> None:
        """Read the header and the first-level index; ``source`` names the section in errors.

        Raises:
            MachOError: the version is unknown, or an array is outside the section.
        """
        self._data = memoryview(data)
        self.source = source
        """The name in errors."""
        self._parsed: dict[int, _Page] = {}
        if len(self._data) < _HEADER.size:
            raise self._error("unwind info is cut short", len(self._data))
        version, common, common_count, personality, personality_count, index, index_count = (
            _HEADER.unpack_from(self._data)
        )
        if version != VERSION:
            raise self._error(f"unwind info of version {version}, not {VERSION}", 0)
        self._check(common, common_count, 4, "common encodings")
        self._common, self._common_count = common, common_count
        self._check(personality, personality_count, 4, "personalities")
        self._personalities = unpack_from(f"<{personality_count}I", self._data, personality)
        self._check(index, index_count, _INDEX_ENTRY.size, "first-level index")
        rows: tuple[int, ...] = unpack_from(f"<{3 * index_count}I", self._data, index)
        self._functions, self._pages, self._lsda = rows[::3], rows[1::3], rows[2::3]
        if any(after < before for before, after in pairwise(self._functions)):
            raise self._error("first-level index is not in order", index)

    def _error(self, message: str, offset: int) -> MachOError:
        return MachOError(message, source=self.source, offset=offset)

    def _check(self, offset: int, count: int, size: int, what: str) -> None:
        if offset + count * size > len(self._data):
            raise self._error(
                f"{count} {what} do not fit in {len(self._data)} bytes of unwind info", offset
            )

    @property
    def personalities(self) -> tuple[ImageOffset, ...]:
        """Offsets of pointers to personality routines (GOT slots), by number less 1."""
        return tuple(ImageOffset(offset) for offset in self._personalities)

    def find(self, offset: ImageOffset) -> UnwindEntry | None:
        """Return the entry at ``offset``; None before the first and after the last.

        Raises:
            MachOError: its page is malformed.
        """
        at = bisect_right(self._functions, offset) - 1
        if at < 0 or at + 1 >= len(self._functions):
            return None
        page = self._page(at)
        if page is None:
            return None
        low, high = 0, page.count
        while low < high:
            middle = (low + high) // 2
            if self._function(page, middle) <= offset:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return None
        end = page.end_function if low == page.count else self._function(page, low)
        return UnwindEntry(
            ImageOffset(self._function(page, low - 1)),
            ImageOffset(end),
            self._encoding(page, low - 1),
        )

    def _page(self, at: int) -> _Page | None:
        """Return the page of a first-level entry; None for the sentinel at the end."""
        page = self._parsed.get(at)
        if page is None:
            page = self._parse_page(at)
            if page is not None:
                self._parsed[at] = page
        return page

    def _parse_page(self, at: int) -> _Page | None:
        offset = self._pages[at]
        if offset == 0:
            return None
        first, end = self._functions[at], self._functions[at + 1]
        self._check(offset, 1, _REGULAR_HEADER.size, "page header")
        (kind,) = unpack_from("<I", self._data, offset)
        if kind == REGULAR_PAGE:
            entries, count = _REGULAR_HEADER.unpack_from(self._data, offset)
            self._check(offset + entries, count, _REGULAR_ENTRY.size, "page entries")
            return _Page(first, end, offset + entries, count, is_compressed=False)
        if kind != COMPRESSED_PAGE:
            raise self._error(f"second-level page of kind {kind}", offset)
        self._check(offset, 1, _COMPRESSED_HEADER.size, "page header")
        entries, count, encodings, encoding_count = _COMPRESSED_HEADER.unpack_from(
            self._data, offset
        )
        self._check(offset + entries, count, 4, "page entries")
        self._check(offset + encodings, encoding_count, 4, "page encodings")
        return _Page(
            first,
            end,
            offset + entries,
            count,
            is_compressed=True,
            encodings=offset + encodings,
            encoding_count=encoding_count,
        )

    def _function(self, page: _Page, index: int) -> int:
        size = 4 if page.is_compressed else _REGULAR_ENTRY.size
        word: int = unpack_from("<I", self._data, page.entries + index * size)[0]
        return page.first_function + (word & _FUNCTION_MASK) if page.is_compressed else word

    def _encoding(self, page: _Page, index: int) -> int:
        if not page.is_compressed:
            at = page.entries + index * _REGULAR_ENTRY.size + 4
        else:
            number = self._data[page.entries + 4 * index + 3]
            at = self._common + 4 * number
            if number >= self._common_count:
                number -= self._common_count
                at = page.encodings + 4 * number
                if number >= page.encoding_count:
                    raise self._error(
                        f"encoding {number} of a page that has {page.encoding_count}",
                        page.entries + 4 * index,
                    )
        encoding: int = unpack_from("<I", self._data, at)[0]
        return encoding

    def personality(self, entry: UnwindEntry) -> ImageOffset | None:
        """Return the offset of the pointer to the entry's personality routine.

        Raises:
            MachOError: the entry's number is out of range.
        """
        number = (entry.encoding & PERSONALITY_MASK) >> PERSONALITY_SHIFT
        if number == 0:
            return None
        if number > len(self._personalities):
            raise self._error(
                f"personality {number} of {len(self._personalities)}", entry.function_offset
            )
        return ImageOffset(self._personalities[number - 1])

    def lsda(self, entry: UnwindEntry) -> ImageOffset | None:
        """Return the offset of the entry's language-specific data; None if it has none.

        Raises:
            MachOError: its part of the LSDA index is outside the section.
        """
        at = bisect_right(self._functions, entry.function_offset) - 1
        if not entry.encoding & HAS_LSDA or at < 0 or at + 1 >= len(self._functions):
            return None
        low, high = self._lsda[at], self._lsda[at + 1]
        count = (high - low) // _LSDA_ENTRY_SIZE
        if count <= 0:
            return None
        self._check(low, count, _LSDA_ENTRY_SIZE, "LSDA entries")
        first, last = 0, count
        while first < last:
            middle = (first + last) // 2
            function, lsda = unpack_from("<2I", self._data, low + middle * _LSDA_ENTRY_SIZE)
            if function == entry.function_offset:
                return ImageOffset(lsda)
            if function < entry.function_offset:
                first = middle + 1
            else:
                last = middle
        return None

    def function_starts(self) -> npt.NDArray[np.uint64]:
        """Return the starts of entries, sorted.

        These are the starts of some functions: see :class:`UnwindEntry`. They bound names in images
        without LC_FUNCTION_STARTS, and never split a function.

        Raises:
            MachOError: a page is malformed, or pages overlap.
        """
        import numpy as np

        parts = [starts for _, starts, _ in self._page_columns()]
        if not parts:
            return np.empty(0, np.uint64)
        return np.unique(np.concatenate(parts)).astype(np.uint64)

    def columns(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """Return the starts of entries, sorted, and their encodings.

        Each extends to the next; the last row is the end of the last entry, with encoding 0.

        Raises:
            MachOError: a page is malformed, or pages overlap.
        """
        import numpy as np

        if not self._functions:
            return np.empty(0, np.uint64), np.empty(0, np.uint32)
        starts, encodings = [], []
        for page, functions, words in self._page_columns():
            starts.append(functions)
            encodings.append(self._encodings(page, words))
        starts.append(np.array(self._functions[-1:], np.uint32))
        encodings.append(np.zeros(1, np.uint32))
        column = np.concatenate(starts).astype(np.uint64)
        order = np.argsort(column, kind="stable")
        return column[order], np.concatenate(encodings)[order]

    def _page_columns(
        self,
    ) -> Iterator[tuple[_Page, npt.NDArray[np.uint32], npt.NDArray[np.uint32]]]:
        """Yield each page with its functions and the words with their encodings."""
        import numpy as np

        left = len(self._data) // 4
        for at in range(len(self._functions) - 1):
            page = self._page(at)
            if page is None:
                continue
            left -= page.count
            if left < 0:  # real pages do not overlap: each entry has four bytes
                raise self._error("second-level pages overlap", self._pages[at])
            if page.is_compressed:
                words = np.frombuffer(self._data, "<u4", page.count, page.entries)
                starts = (words & np.uint32(_FUNCTION_MASK)) + np.uint32(page.first_function)
            else:
                pairs = np.frombuffer(self._data, "<u4", 2 * page.count, page.entries)
                starts, words = pairs[::2], pairs[1::2]
            yield page, starts.astype(np.uint32), words

    def _encodings(self, page: _Page, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        import numpy as np

        if not page.is_compressed:
            return words.astype(np.uint32)
        numbers = words >> np.uint32(24)
        # The maximum of a byte.
        common = np.frombuffer(self._data, "<u4", min(self._common_count, 256), self._common)
        own = np.frombuffer(self._data, "<u4", min(page.encoding_count, 256), page.encodings)
        both = np.concatenate([common, own])
        if len(numbers) and int(numbers.max()) >= len(both):
            raise self._error(
                f"encoding {int(numbers.max())} of a page that has {len(both)}", page.entries
            )
        found: npt.NDArray[np.uint32] = both[numbers].astype(np.uint32)
        return found
