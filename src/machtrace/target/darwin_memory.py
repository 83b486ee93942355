"""Memory of another process of macOS, read by its task port."""

from __future__ import annotations

from collections.abc import Sequence

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.target.darwin_extension import TaskExtension


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
        """The bytes of each range, address and size, up to the first that cannot be read."""
        return self._extension.read_memory(self._port, list(ranges)) if ranges else []
