"""Memory as the files have it that were mapped: for mappings that may be gone by now."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.targets.shared.proc_maps import Mapping


class MappedFilesMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` of what cannot have been written.

    A file is read only if it still is the one that was mapped, by its device and inode.

    Args:
        mappings: by address.
    """

    __slots__ = ("_mappings", "_starts")

    def __init__(self, mappings: Sequence[Mapping]) -> None:
        self._mappings = [m for m in mappings if m.is_file and not m.is_writable]
        self._starts = [mapping.start for mapping in self._mappings]

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        index = bisect_right(self._starts, address) - 1
        mapping = self._mappings[index] if index >= 0 else None
        if mapping is None or size < 0 or address + size > mapping.end or mapping.is_deleted:
            raise MemoryReadError(address, size)
        with _opened(mapping, address, size) as descriptor:
            data = os.pread(descriptor, size, mapping.offset + address - mapping.start)
        if len(data) != size:
            raise MemoryReadError(address, size)
        return data


@contextmanager
def _opened(mapping: Mapping, address: Avma, size: int) -> Iterator[int]:
    try:
        descriptor = os.open(mapping.path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        raise MemoryReadError(address, size) from None
    try:
        status = os.fstat(descriptor)
        device = os.major(status.st_dev), os.minor(status.st_dev)
        if (device, status.st_ino) != (mapping.device, mapping.inode):
            raise MemoryReadError(address, size)
        yield descriptor
    except OSError:
        raise MemoryReadError(address, size) from None
    finally:
        os.close(descriptor)
