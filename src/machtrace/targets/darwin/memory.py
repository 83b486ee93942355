"""Memory of another process of macOS, read by its task port."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.targets.darwin.extension import TaskExtension

_VM_PROT_READ, _VM_PROT_WRITE = 1, 2


class TaskMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` of a process that may be running.

    Many ranges are read by one call of the extension.
    """

    def __init__(self, extension: TaskExtension, port: int) -> None:
        self._extension = extension
        self._port = port

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        if address < 0 or size < 0 or address + size > 1 << 64:
            raise MemoryReadError(address, size)
        (data,) = self._extension.read_memory(self._port, [(address, size)])
        if len(data) < size:
            raise MemoryReadError(address, size)
        return data

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read the bytes of each range, address and size, up to the first that cannot be read."""
        return self._extension.read_memory(self._port, list(ranges)) if ranges else []

    def region(self, address: int) -> tuple[int, int, int] | None:
        """Start, end and protection of the region there, or of the next above; None above all."""
        result, start, size, protection, _ = self._extension.find_region(self._port, address)
        return None if result else (start, start + size, protection)


class ConstantMemory:
    """The read-only memory of a process: the code and the tables of its images.

    Read on request, however long after a snapshot was made: it is the same as long as
    its image is loaded. What can be written to is as if it were not there.
    """

    def __init__(self, memory: TaskMemory) -> None:
        self._memory = memory
        self._starts: list[int] = []
        self._ends: list[int] = []

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        at, end = int(address), address + size
        while at < end:  # segments of a file adjoin
            upto = self._end_of(at)
            if upto is None:
                raise MemoryReadError(address, size)
            at = upto
        return self._memory.read(address, size)

    def _end_of(self, address: int) -> int | None:
        """Return the end of the constant region that holds ``address``; None if none does."""
        place = bisect_right(self._starts, address) - 1
        if place >= 0 and address < self._ends[place]:
            return self._ends[place]
        found = self._memory.region(address)
        if found is None:
            return None
        start, end, protection = found
        if start > address or protection & _VM_PROT_WRITE or not protection & _VM_PROT_READ:
            return None
        self._starts.insert(place + 1, start)
        self._ends.insert(place + 1, end)
        return end
