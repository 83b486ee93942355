"""Memory of a stopped process by pages, so that many reads take one round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma

PAGE = 4096

_Result = TypeVar("_Result")
_MAX_ROUNDS = 64
_MAX_READ_SIZE = 1 << 22
"""Bytes of one read: what headers and lists take is a few pages."""
_MAX_PAGES = 1 << 14
"""Pages held at most, 64 MiB."""


class MemoryOfRanges(Protocol):
    """Memory of a remote process: requesting many ranges at once is fastest."""

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read the bytes of each range, address and size, up to the first that cannot be read.

        Raises:
            ConnectionLostError, RemoteProtocolError: the request failed.
        """
        ...


class PagedMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` that batches reads.

    A read of pages that are not cached fails and records them; :meth:`gather` fetches what was
    recorded and runs the function again, until nothing is missing.
    """

    def __init__(self, memory: MemoryOfRanges) -> None:
        self._memory = memory
        self._pages: dict[int, bytes] = {}
        """By page number; shorter where not all is readable."""
        self._wanted: dict[int, None] = {}

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        if not 0 <= size <= _MAX_READ_SIZE or address < 0:
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
        """Drop all pages: the process has run."""
        self._pages.clear()
        self._wanted.clear()

    def gather(self, work: Callable[[], _Result]) -> _Result:
        """Run ``work`` until all readable memory that it needs is cached, and return its result.

        Raises:
            ConnectionLostError, RemoteProtocolError: a request failed.
        """
        for _ in range(_MAX_ROUNDS):
            self._wanted.clear()
            result = work()
            if not self._wanted or len(self._pages) + len(self._wanted) > _MAX_PAGES:
                return result
            self._fetch()
        return work()

    def _fetch(self) -> None:
        runs = list(_runs(sorted(self._wanted)))
        ranges = [(start * PAGE, count * PAGE) for start, count in runs]
        for (start, count), data in zip(runs, self._memory.read_many(ranges), strict=True):
            # Up to the first unreadable page; those after it are requested again.
            for page in range(min(count, len(data) // PAGE + 1)):
                self._pages[start + page] = data[page * PAGE : (page + 1) * PAGE]
        self._wanted.clear()


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive page numbers as start and length."""
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
