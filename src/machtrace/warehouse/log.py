"""The log of received reports: appended bytes that are on the disk before they are acknowledged.

A record is a header (magic, number of bytes, CRC-32 of the body, CRC-32 of the header before it)
and the body. A record that was not written whole ends the log: what follows the last whole one is
cut off when the log is opened for writing. A record that was removed has another magic and zeros
as its body, so that all others stay where they are.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from machtrace.errors import FileAccessError, FormatError

_HEADER = struct.Struct("<4sIII")  # magic, size, CRC-32 of the body, CRC-32 of these 12 bytes
_MAGIC, _REMOVED = b"MTL1", b"MTL0"
_PART = 1 << 20
UNFINISHED_LOG = ".unfinished"
"""The suffix of a log that is copied."""
MAX_BYTES = 1 << 30
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
            if len(body) > MAX_BYTES:
                raise FileAccessError(str(self.path), f"a record is larger than {MAX_BYTES} bytes")
            parts += [_header(_MAGIC, len(body), zlib.crc32(body)), body]
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


class Span(NamedTuple):
    """The place of a record, without its body."""

    offset: int
    size: int
    """Bytes of the body."""
    crc: int
    is_removed: bool

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.offset + _HEADER.size + self.size


def records(path: Path, offset: int = 0, end: int | None = None) -> Iterator[Record]:
    """Yield the whole records of a log from an offset on, without those that were removed.

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
            while (span := _span(file.fileno(), offset, size)) is not None:
                if not span.is_removed:
                    body = _body(file.fileno(), span)
                    if body is None:
                        return
                    yield Record(offset, body)
                offset = span.end
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None


def spans(path: Path, head: int = 0) -> Iterator[tuple[Span, bytes]]:
    """Yield the places of a log's records, with the first ``head`` bytes of each body.

    Bodies are not checked.

    Raises:
        FileAccessError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            offset, size = 0, os.fstat(file.fileno()).st_size
            while (span := _span(file.fileno(), offset, size)) is not None:
                start = offset + _HEADER.size
                yield span, os.pread(file.fileno(), min(head, span.size), start)
                offset = span.end
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None


def span_at(path: Path, offset: int) -> Span | None:
    """Return the place of the record at an offset; None if there is no record.

    Raises:
        FileAccessError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _span(file.fileno(), offset, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise FileAccessError(str(path), error.strerror or str(error)) from None


def read_record(path: Path, offset: int) -> bytes:
    """Return the body of the record at an offset.

    Raises:
        FileAccessError: the file cannot be read.
        FormatError: there is no whole record, or it was removed.
    """
    span = span_at(path, offset)
    if span is not None and not span.is_removed:
        for record in records(path, offset, span.end):
            return record.body
    raise FormatError("no whole record", source=str(path), offset=offset)


def remove_records(path: Path, offsets: Collection[int]) -> None:
    """Overwrite the bodies of some records of a log that is not written any more.

    A copy replaces the log when it is whole and on the disk.

    Raises:
        FileAccessError: the log cannot be read, or the copy cannot be written.
    """
    wanted = set(offsets)
    places = [span for span, _ in spans(path) if span.offset in wanted and not span.is_removed]
    if not places:
        return
    copy = path.with_suffix(UNFINISHED_LOG)
    try:
        shutil.copy(path, copy)
        with copy.open("r+b") as file:
            for span in places:
                file.seek(span.offset)
                file.write(_header(_REMOVED, span.size, 0))
                for start in range(0, span.size, _PART):
                    file.write(bytes(min(_PART, span.size - start)))
            file.flush()
            os.fsync(file.fileno())
        copy.replace(path)
    except OSError as error:
        copy.unlink(missing_ok=True)
        raise FileAccessError(str(path), error.strerror or str(error)) from None


def _header(magic: bytes, size: int, crc: int) -> bytes:
    head = _HEADER.pack(magic, size, crc, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def _span(file: int, offset: int, size: int) -> Span | None:
    head = os.pread(file, _HEADER.size, offset)
    if len(head) < _HEADER.size:
        return None
    magic, length, crc, own = _HEADER.unpack(head)
    is_known = magic in (_MAGIC, _REMOVED) and own == zlib.crc32(head[:-4])
    if not is_known or length > size - offset - _HEADER.size:
        return None
    return Span(offset, length, crc, magic == _REMOVED)


def _body(file: int, span: Span) -> bytes | None:
    """Return the body of a record; None if it is not whole."""
    body = os.pread(file, span.size, span.offset + _HEADER.size)
    return body if len(body) == span.size and zlib.crc32(body) == span.crc else None


def _last_end(file: int) -> int:
    """Return the end of the last whole record."""
    offset, size = 0, os.fstat(file).st_size
    while (span := _span(file, offset, size)) is not None:
        if not span.is_removed and _body(file, span) is None:
            break
        offset = span.end
    return offset
