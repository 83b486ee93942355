"""``/proc/self`` as it is read between two turns of other Python threads.

Each of Python's own system calls gives up the interpreter's lock, and where many threads want it,
to get it back takes far longer than the call. What every snapshot reads is read by the extension,
which keeps it.

Importing this raises ImportError where the package was installed without its extensions.

Memory as the files have it that were mapped: for mappings that may be gone by now.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from machtrace._native import _inprocess
from machtrace.errors import MemoryReadError
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryReader
from machtrace.targets.linux.core_facts import FactsGatherer, GatheredFacts
from machtrace.targets.linux.procfs import ProcessDirectory
from machtrace.targets.shared.proc_maps import Mapping


class OwnDirectory(ProcessDirectory):
    """The directory of this process, of which the calling thread lives."""

    def read(self, name: str) -> str:
        """See :meth:`ProcessDirectory.read`."""
        self._check_open()
        return os.fsdecode(_inprocess.read_file(f"/proc/self/{name}"))

    def thread_ids(self) -> tuple[int, ...]:
        """See :meth:`ProcessDirectory.thread_ids`."""
        self._check_open()
        return tuple(sorted(_inprocess.list_threads(), key=lambda thread: thread != self.pid))

    def live_thread(self) -> int:
        """See :meth:`ProcessDirectory.live_thread`."""
        self._check_open()
        return threading.get_native_id()


class OwnMemory:
    """The memory of this process, as it is now."""

    __slots__ = ()

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        try:
            return _inprocess.read_memory(address, size)
        except (OSError, OverflowError, ValueError, MemoryError):
            raise MemoryReadError(address, size) from None


class OwnFacts(FactsGatherer):
    """Gathers the facts again only once an image was loaded or unloaded: heaps change always."""

    _known: GatheredFacts | None = None
    _changes = 0

    def gather(self, mappings: Sequence[Mapping], memory: MemoryReader) -> GatheredFacts:
        """See :meth:`FactsGatherer.gather`."""
        changes = _inprocess.image_changes()
        if self._known is None or changes != self._changes:
            self._known = super().gather(mappings, memory)
            self._changes = changes
        return self._known


class MappedFilesMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` of what cannot have been written.

    ``mappings`` are sorted by address. A file is read only if it still is the one that was mapped,
    by its device and inode.
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
