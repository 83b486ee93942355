"""The log of received reports: appended bytes that are on the disk before they are acknowledged.

A record is a header (magic, number of bytes, CRC-32 of the body, CRC-32 of the header before it)
and the body. A record that was not written whole ends the log: what follows the last whole one is
cut off when the log is opened for writing.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from machtrace.errors import FileAccessError, FormatError

_HEADER = struct.Struct("<4sIII")  # magic, size, CRC-32 of the body, CRC-32 of these 12 bytes
_MAGIC = b"MTL1"
LARGEST = 1 << 30
"""Bytes of one body."""


class Record(NamedTuple):
    """A body in a log."""

    offset: int
    """The position of its header in the file."""
    body: bytes

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.offset + _HEADER.size + len(self.body)


class LogWriter:
    """Appends records to one file."""

    def __init__(self, path: Path) -> None:
        """Open or create a log; an unfinished record at its end is cut off.

        Raises:
            FileAccessError: the file cannot be opened or written.
        """
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise FileAccessError(str(path), error.strerror or str(error)) from None
        try:
            self.size = _last_end(self._file)
            if os.fstat(self._file).st_size != self.size:
                os.ftruncate(self._file, self.size)
            os.fsync(self._file)
        except OSError as error:
            os.close(self._file)
            raise FileAccessError(str(path), error.strerror or str(error)) from None

    def append(self, bodies: Iterable[bytes]) -> list[int]:
        """Append records, and return their offsets; they are on the disk then.

        Raises:
            FileAccessError: they cannot be written, as when the disk is full; none of them stays.
        """
        offsets, parts, size = [], [], self.size
        for body in bodies:
            if len(body) > LARGEST:
                raise FileAccessError(str(self.path), f"a record is larger than {LARGEST} bytes")
            header = _HEADER.pack(_MAGIC, len(body), zlib.crc32(body), 0)[:-4]
            parts += [header, struct.pack("<I", zlib.crc32(header)), body]
            offsets.append(size)
            size += _HEADER.size + len(body)
        try:
            self._write(b"".join(parts))
            os.fdatasync(self._file) if hasattr(os, "fdatasync") else os.fsync(self._file)
        except OSError as error:
            # What was written of it would be read as if it had been acknowledged.
            os.ftruncate(self._file, self.size)
            raise FileAccessError(str(self.path), error.strerror or str(error)) from None
        self.size = size
        return offsets

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        view, at = memoryview(data), self.size
        while view:
            written = os.pwrite(self._file, view, at)
            view, at = view[written:], at + written


def records(path: Path, offset: int = 0, end: int | None = None) -> Iterator[Record]:
    """Yield the whole records of a log from an offset on.

    Args:
        path: the log.
        offset: the position of a record's header.
        end: where to end; None: at the last whole record.

    Raises:
        FileAccessError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size if end is None else end
            while (record := _record(file.fileno(), offset, size)) is not None:
                yield record
                offset = record.end
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None


def read_record(path: Path, offset: int) -> bytes:
    """Return the body of the record at an offset.

    Raises:
        FileAccessError: the file cannot be read.
        FormatError: there is no whole record.
    """
    for record in records(path, offset):
        return record.body
    raise FormatError("no whole record", source=str(path), offset=offset)


def _record(file: int, offset: int, size: int) -> Record | None:
    head = os.pread(file, _HEADER.size, offset)
    if len(head) < _HEADER.size:
        return None
    magic, length, crc, own = _HEADER.unpack(head)
    if magic != _MAGIC or own != zlib.crc32(head[:-4]) or length > size - offset - _HEADER.size:
        return None
    body = os.pread(file, length, offset + _HEADER.size)
    return Record(offset, body) if len(body) == length and zlib.crc32(body) == crc else None


def _last_end(file: int) -> int:
    """Return the end of the last whole record."""
    offset, size = 0, os.fstat(file).st_size
    while (record := _record(file, offset, size)) is not None:
        offset = record.end
    return offset
