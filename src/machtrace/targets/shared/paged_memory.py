"""Memory of a stopped process by pages, so that what many readers want comes in one flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma

PAGE = 4096

_Found = TypeVar("_Found")
_MOST_ROUNDS = 64
_LARGEST_READ = 1 << 22
"""Bytes of one read: what headers and lists take is a few pages."""
_MOST_PAGES = 1 << 14
"""Pages held at most, 64 MiB."""


class MemoryOfRanges(Protocol):
    """Memory of a process elsewhere, of which many ranges are best asked for at once."""

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each range, address and size, up to the first that cannot be read.

        Raises:
            ConnectionLostError, RemoteProtocolError: the memory could not be asked for.
        """
        ...


class PagedMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` that first notes what is wanted.

    A read of what is not there yet is refused as if it could not be read, and noted;
    :meth:`gather` runs a function again until it wants nothing more.
    """

    def __init__(self, memory: MemoryOfRanges) -> None:
        self._memory = memory
        self._pages: dict[int, bytes] = {}
        """By page number, as long as could be read."""
        self._wanted: dict[int, None] = {}

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        if not 0 <= size <= _LARGEST_READ or address < 0:
            raise MemoryReadError(address, size)
        first, last = address // PAGE, (address + max(size, 1) - 1) // PAGE
        lacking = [page for page in range(first, last + 1) if page not in self._pages]
        if lacking:
            self._wanted.update(dict.fromkeys(lacking))
            raise MemoryReadError(address, size)
        begin = address - first * PAGE
        parts: list[bytes] = []
        for page in range(first, last + 1):
            parts.append(self._pages[page])
            if len(parts[-1]) < PAGE and page < last:
                raise MemoryReadError(address, size)
        data = b"".join(parts)[begin : begin + size]
        if len(data) < size:
            raise MemoryReadError(address, size)
        return data

    def forget(self) -> None:
        """Hold nothing any more: the process has run."""
        self._pages.clear()
        self._wanted.clear()

    def gather(self, work: Callable[[], _Found]) -> _Found:
        """What ``work`` gives once all memory that it wants, and that there is, has been read.

        Raises:
            ConnectionLostError, RemoteProtocolError: memory could not be asked for.
        """
        for _ in range(_MOST_ROUNDS):
            self._wanted.clear()
            found = work()
            if not self._wanted or len(self._pages) + len(self._wanted) > _MOST_PAGES:
                return found
            self._fetch()
        return work()

    def _fetch(self) -> None:
        runs = list(_runs(sorted(self._wanted)))
        ranges = [(start * PAGE, count * PAGE) for start, count in runs]
        for (start, count), data in zip(runs, self._memory.read_many(ranges), strict=True):
            # Up to the first that cannot be read; those behind it are asked for again.
            for page in range(min(count, len(data) // PAGE + 1)):
                self._pages[start + page] = data[page * PAGE : (page + 1) * PAGE]
        self._wanted.clear()


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Page numbers as starts and lengths."""
    start = count = 0
    for page in pages:
        if count and page == start + count:
            count += 1
            continue
        if count:
            yield start, count
        start, count = page, 1
    if count:
        yield start, count
