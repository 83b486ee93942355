"""Memory of a process: as it runs, and what outlives it, its images' files."""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from machtrace.errors import MemoryReadError
from machtrace.mapped_file import mapped_file
from machtrace.model.address import Avma, FileOffset
from machtrace.targets.linux.access import access_error
from machtrace.targets.linux.procfs import ProcessDirectory


class ProcessMemory:
    """The memory of a process that runs: what is read may change meanwhile.

    Only what the process cannot change is read through it, and stacks of threads that stand still.

    Args:
        descriptor: of ``/proc/PID/mem``; the caller closes it.
    """

    __slots__ = ("_descriptor",)

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
    """The memory that a process has now, until the end of the block.

    Raises:
        TargetGoneError: it has exited.
        TargetAccessError: the kernel does not let it be looked at.
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
    """Tells a file from another that has its name, and from what it was before it was changed."""

    device: int
    inode: int
    size: int
    changed_at_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """From what stat says."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class MappedFile:
    """A file that is opened and mapped when its bytes are first asked for, and not before.

    Args:
        path: where it can be opened.
        identity: which file it must be then.
        descriptor: of the open file, where ``path`` will not do later; it is taken over.
    """

    def __init__(self, path: str, identity: FileIdentity, descriptor: int | None = None) -> None:
        self.path = path
        self.identity = identity
        if descriptor is not None:
            self.path = f"/proc/self/fd/{descriptor}"
            weakref.finalize(self, os.close, descriptor)

    def __getstate__(self) -> dict[str, object]:
        # Mappings cannot be pickled; who gets this maps the file, where it is still the same.
        return {"path": self.path, "identity": self.identity}

    @cached_property
    def data(self) -> memoryview:
        """All its bytes; none where it can be had no more."""
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
    """A part of a file, where the process has it and cannot change it."""

    start: Avma
    size: int
    file: MappedFile
    offset: FileOffset


class FileMemory:
    """A :class:`~machtrace.model.memory.MemoryReader` of file segments."""

    __slots__ = ("_segments", "_starts")

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
