"""Zip archives: their members, unpacked in chunks of bounded size.

``zipfile`` bounds the output of deflated members only: of bzip2 and LZMA one read unpacks up to
1 MiB of packed bytes at once, however much they hold. Here it reads nothing but the directory.
Source: PKWARE's *.ZIP File Format Specification* (APPNOTE.TXT), sections 4.3 and 4.4.
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from enum import Enum, auto

from machtrace.frozen import dataclass

_MAGICS = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
"""A first member; an archive without members; one that was split, and joined again."""
_CHUNK = 1 << 20
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_END_RECORD = struct.Struct("<4s4H2LH")
_END_LOCATOR_64 = struct.Struct("<4sLQL")
_END_RECORD_64 = struct.Struct("<4sQ2H2L4Q")
_MAX_COMMENT_LENGTH = (1 << 16) - 1
_ENCRYPTED = 0x1
_FAILURES = (
    zipfile.BadZipFile,
    struct.error,
    EOFError,
    LookupError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""Exceptions of ``zipfile`` for a damaged directory, and RuntimeError's subclass for a compression
method or a version that it does not read."""


class ZipProblem(Enum):
    """Why an archive or a member is not unpacked."""

    MALFORMED = auto()
    ENCRYPTED = auto()
    METHOD = auto()
    TOO_LARGE = auto()
    TOO_MANY = auto()


class ZipError(ValueError):
    """An archive or a member that is not unpacked; the text is the detail."""

    def __init__(self, problem: ZipProblem, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem


def is_zip(start: bytes | memoryview) -> bool:
    """Return whether a file that starts like this is a zip archive."""
    return bytes(start[:4]) in _MAGICS


@dataclass(frozen=True, slots=True, eq=False)
class ZipMember:
    """A member of an archive, as the directory states it."""

    name: str
    size: int
    """The declared size in bytes."""
    packed_size: int
    is_file: bool
    """Whether it is neither a folder nor a symbolic link."""
    problem: ZipProblem | None
    """Why it cannot be unpacked: METHOD or ENCRYPTED."""
    _archive: memoryview
    _info: zipfile.ZipInfo

    def check(self) -> None:
        """Raise :class:`ZipError` if the member cannot be unpacked, whatever its size."""
        if self.problem is ZipProblem.ENCRYPTED:
            raise ZipError(self.problem, "it is encrypted")
        if self.problem is ZipProblem.METHOD:
            raise ZipError(self.problem, f"packed by method {self._info.compress_type}")

    def start(self, size: int) -> bytes:
        """Return up to ``size`` bytes of the member's beginning.

        Raises:
            ZipError: it cannot be unpacked.
        """
        return next(self._unpacked(size), b"")[:size]

    def chunks(self) -> Iterator[bytes]:
        """Yield the member's bytes, of which no more than a chunk is ever in memory.

        Raises:
            ZipError: it cannot be unpacked, or its bytes are not those that it declares.
        """
        size = crc = 0
        for chunk in self._unpacked(_CHUNK):
            size += len(chunk)
            if size > self.size:
                raise _malformed(f"it has more than the {self.size:,} bytes it declares")
            crc = zlib.crc32(chunk, crc)
            yield chunk
        if size != self.size:
            raise _malformed(f"it has {size:,} of the {self.size:,} bytes it declares")
        if crc != self._info.CRC:
            raise _malformed("its checksum is not the one that it declares")

    def _unpacked(self, limit: int) -> Iterator[bytes]:
        self.check()
        packed = self._packed()
        if self._info.compress_type == zipfile.ZIP_STORED:
            for at in range(0, len(packed), limit):
                yield bytes(packed[at : at + limit])
            return
        unpack = _bunzip if self._info.compress_type == zipfile.ZIP_BZIP2 else _inflate
        try:
            yield from unpack(packed, limit)
        except (zlib.error, OSError, EOFError, ValueError) as error:
            raise _malformed(str(error)) from error

    def _packed(self) -> memoryview:
        at = self._info.header_offset
        header = self._archive[at : at + _LOCAL_HEADER.size] if at >= 0 else b""
        if len(header) < _LOCAL_HEADER.size or bytes(header[:4]) != _MAGICS[0]:
            raise _malformed("its header is missing")
        name, extra = _LOCAL_HEADER.unpack(header)[-2:]
        start = at + _LOCAL_HEADER.size + name + extra
        packed = self._archive[start : start + self.packed_size]
        if len(packed) < self.packed_size:
            raise _malformed("it is cut short")
        return packed


def read_members(
    data: memoryview, *, directory_limit: int = 64 << 20, member_limit: int = 500_000
) -> list[ZipMember]:
    """Return the members of the archive in ``data``; none is unpacked.

    Args:
        data: the whole file.
        directory_limit: the largest directory in bytes, which is read as a whole.
        member_limit: the largest number of members.

    Raises:
        ZipError: the directory is malformed, or beyond a limit.
    """
    directory = _directory(data)
    if len(directory) > directory_limit:
        raise ZipError(ZipProblem.TOO_LARGE, f"its list of members has {len(directory):,} bytes")
    if bytes(directory).count(b"PK\x01\x02") > member_limit:
        raise ZipError(ZipProblem.TOO_MANY, f"more than {member_limit} members")
    try:
        with zipfile.ZipFile(io.BufferedReader(_Stream(data))) as archive:
            return [_member(data, info) for info in archive.infolist()]
    except _FAILURES as error:
        raise _malformed(str(error) or "it cannot be unpacked") from error


def _member(data: memoryview, info: zipfile.ZipInfo) -> ZipMember:
    problem = None
    if info.flag_bits & _ENCRYPTED:
        problem = ZipProblem.ENCRYPTED
    elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        problem = ZipProblem.METHOD
    is_folder = info.filename.endswith("/")  # is_dir() fails if the name is empty
    is_file = not is_folder and not stat.S_ISLNK(info.external_attr >> 16)
    sizes = info.file_size, info.compress_size
    return ZipMember(info.filename, *sizes, is_file, problem, data, info)


class _Stream(io.RawIOBase):
    """Bytes as a file: ``BytesIO`` would copy a mapping."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if base + offset < 0:
            raise ValueError("an offset before the archive")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def _directory(data: memoryview) -> memoryview:
    """Return the central directory by the records at the archive's end; empty without them."""
    tail = max(0, len(data) - _MAX_COMMENT_LENGTH - _END_RECORD.size)
    end = bytes(data[tail:]).rfind(b"PK\x05\x06")
    if end < 0 or tail + end + _END_RECORD.size > len(data):
        return data[:0]
    end += tail
    size: int = _END_RECORD.unpack_from(data, end)[5]
    locator = end - _END_LOCATOR_64.size
    if locator >= 0 and bytes(data[locator : locator + 4]) == b"PK\x06\x07":
        at = _END_LOCATOR_64.unpack_from(data, locator)[2]
        if at + _END_RECORD_64.size <= len(data):
            size = _END_RECORD_64.unpack_from(data, at)[8]
        size += _END_RECORD_64.size + _END_LOCATOR_64.size
    return data[max(0, end - size) : end]


def _inflate(packed: memoryview, limit: int) -> Iterator[bytes]:
    reader = zlib.decompressobj(-15)
    pending: bytes | memoryview = b""
    at = 0
    while not reader.eof:
        if not pending:
            pending = packed[at : at + _CHUNK]
            at += len(pending)
        is_last = not pending
        # Without input there may still be output for which the last chunk had no room.
        chunk = reader.decompress(pending, limit)
        pending = reader.unconsumed_tail
        if chunk:
            yield chunk
        elif is_last:
            return


def _bunzip(packed: memoryview, limit: int) -> Iterator[bytes]:
    import bz2

    reader = bz2.BZ2Decompressor()
    at = 0
    while not reader.eof:
        pending: bytes | memoryview = b""
        if reader.needs_input:
            pending = packed[at : at + _CHUNK]
            at += len(pending)
            if not pending:
                return
        chunk = reader.decompress(pending, limit)
        if chunk:
            yield chunk


def _malformed(detail: str) -> ZipError:
    return ZipError(ZipProblem.MALFORMED, detail)
