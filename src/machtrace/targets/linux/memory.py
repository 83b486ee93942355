"""Memory of a process: as it runs, and what outlives it, its images' files."""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple

from machtrace.errors import MemoryReadError
from machtrace.frozen import dataclass
from machtrace.mapped_file import mapped_file
from machtrace.model.address import Avma, FileOffset
from machtrace.targets.linux.access import access_error
from machtrace.targets.linux.procfs import ProcessDirectory


class ProcessMemory:
    """The memory of a process that runs: what is read may change meanwhile.

    Only read-only memory and stacks of stopped threads are read through it.

    Args:
        descriptor: of ``/proc/PID/mem``; the caller closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, address: Avma, size: int, /) -> bytes:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        parts = bytearray()
        while len(parts) < size:
            try:
                part = os.pread(self._descriptor, size - len(parts), address + len(parts))
            except (OSError, OverflowError):
                part = b""
            if not part:
                raise MemoryReadError(address, size)
            parts += part
        return bytes(parts)


@contextmanager
def open_memory(directory: ProcessDirectory) -> Iterator[ProcessMemory]:
    """Open a process's memory until the end of the block.

    Raises:
        TargetGoneError: it has exited.
        TargetAccessError: the kernel denies access.
    """
    try:
        descriptor = directory.open_live("mem")
    except OSError as error:
        raise access_error(directory, error) from None
    try:
        yield ProcessMemory(descriptor)
    finally:
        os.close(descriptor)


class FileIdentity(NamedTuple):
    """Distinguishes a file from others with its name, and from its earlier contents."""

    device: int
    inode: int
    size: int
    changed_at_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """Build it from a stat result."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class MappedFile:
    """A file that is opened and mapped when its bytes are first used.

    Args:
        path: can be opened.
        identity: the file must still have it then.
        descriptor: of the open file, where ``path`` will not do later; it is taken over.
    """

    def __init__(self, path: str, identity: FileIdentity, descriptor: int | None = None) -> None:
        self.path = path
        self.identity = identity
        if descriptor is not None:
            self.path = f"/proc/self/fd/{descriptor}"
            weakref.finalize(self, os.close, descriptor)

    def __getstate__(self) -> dict[str, object]:
        # Mappings cannot be pickled; the receiver maps the file if it is still the same.
        return {"path": self.path, "identity": self.identity}

    @cached_property
    def data(self) -> memoryview:
        """All its bytes; empty if it is no longer available."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return memoryview(b"")
        try:
            if FileIdentity.of(os.fstat(descriptor)) != self.identity:
                return memoryview(b"")
            return mapped_file(descriptor)
        except (OSError, ValueError):
            return memoryview(b"")
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class FileSegment:
    """A part of a file that the process has mapped read-only."""

    start: Avma
    size: int
    file: MappedFile
    offset: FileOffset


class FileMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` of file segments."""

    def __init__(self, segments: Iterable[FileSegment]) -> None:
        self._segments = tuple(sorted(segments, key=lambda segment: segment.start))
        self._starts = [segment.start for segment in self._segments]

    def read(self, address: Avma, size: int, /) -> bytes | memoryview:
        """See :meth:`~machtrace.model.memory.MemoryReader.read`."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or size < 0:
            raise MemoryReadError(address, size)
        segment = self._segments[index]
        delta = address - segment.start
        begin = segment.offset + delta
        if delta + size > segment.size or begin + size > len(segment.file.data):
            raise MemoryReadError(address, size)
        return segment.file.data[begin : begin + size]
