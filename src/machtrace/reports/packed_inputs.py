"""Reports in gzip files and zip archives, within limits.

Names in archives only say what to call a report: nothing is unpacked to disk.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Protocol

from machtrace.errors import FileAccessError, MachtraceError
from machtrace.render.printable import printable
from machtrace.reports.source import ReportSource

_PART = 1 << 20
_GZIP = b"\x1f\x8b"
_ZIP = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_MEMBER = b"PK\x01\x02"
"""Each entry of an archive's list of members begins so."""


class Readable(Protocol):
    """A file of bytes."""

    def read(self, size: int, /) -> bytes:
        """So many bytes, or fewer; none at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """How much is read."""

    file_bytes: int = 1 << 29
    """Of one file, packed or not."""
    total_bytes: int = 1 << 33
    """Of everything that one file holds, unpacked."""
    ratio: int = 200
    """How many times its own size a file may hold, beyond ``always_bytes``: text packs to about a
    tenth, and what was made to fill memory to a thousandth."""
    always_bytes: int = 1 << 26
    """What any file may hold."""
    members: int = 100_000
    """Of one file."""
    depth: int = 3
    """Archives in archives."""


@dataclass(frozen=True, slots=True)
class ReportInput:
    """A file to read, or why it cannot be."""

    name: str
    """As the user knows it: a path, and in archives the member behind a colon; printable."""
    source: ReportSource | MachtraceError
    is_named: bool
    """Whether the user gave its path, and did not only give a folder or an archive that has it."""

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.source.data) if isinstance(self.source, ReportSource) else 0


def read_within(file: Readable, limit: int) -> bytes:
    """All bytes of ``file``; of one that has more than ``limit``, more than that.

    A part at a time: files take memory for as much as is asked for.
    """
    parts: list[bytes] = []
    size = 0
    while size <= limit and (part := file.read(_PART)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def unpacked(
    name: str, data: bytes, limits: InputLimits, *, is_named: bool
) -> Iterator[ReportInput]:
    """The file itself where nothing is packed in it; else what is. Raises nothing."""
    yield from _unpacked(name, data, _Budget(limits, len(data)), is_named=is_named, depth=0)


class _Budget:
    """What is left of the limits of one file that the user has."""

    def __init__(self, limits: InputLimits, size: int) -> None:
        self.limits = limits
        self.total = min(limits.total_bytes, max(limits.always_bytes, limits.ratio * size))
        self.bytes_left = self.total
        self.members_left = limits.members

    @property
    def next_bytes(self) -> int:
        """How many more bytes the next file may have."""
        return max(min(self.limits.file_bytes, self.bytes_left), 0)

    def take(self, name: str, size: int) -> None:
        """Raises FileAccessError: there is more of it than is read."""
        is_over = size > self.next_bytes
        self.bytes_left -= size
        if is_over:
            raise self.error(name)

    def error(self, name: str) -> FileAccessError:
        """That there is more of it than is read."""
        most = min(self.limits.file_bytes, self.total)
        error = FileAccessError(name, f"unpacked it is larger than the {most} bytes that are read")
        error.remedy = "unpack it, if you trust it, and give the files"
        return error


def _unpacked(
    name: str, data: bytes, budget: _Budget, *, is_named: bool, depth: int
) -> Iterator[ReportInput]:
    if not data.startswith((_GZIP, _ZIP, _EMPTY_ZIP)):
        yield ReportInput(name, ReportSource(name, data), is_named)
        return
    try:
        if depth >= budget.limits.depth:
            refused = FileAccessError(name, f"archives in each other, {depth} deep")
            refused.remedy = "unpack it, if you trust it, and give the files"
            raise refused
        if data.startswith(_GZIP):
            inner = _gunzip(name, data, budget)
            del data
            yield from _unpacked(name, inner, budget, is_named=is_named, depth=depth + 1)
            return
        yield from _members(name, data, budget, depth)
    except MachtraceError as error:
        yield ReportInput(name, error, is_named)


def _damaged(name: str, what: str, error: Exception) -> FileAccessError:
    refused = FileAccessError(name, f"cannot be {what} ({error})")
    refused.remedy = "copy the file again, or unpack it yourself and give what comes of it"
    return refused


def _gunzip(name: str, data: bytes, budget: _Budget) -> bytes:
    try:
        with gzip.GzipFile(fileobj=BytesIO(data)) as packed:
            inner = read_within(packed, budget.next_bytes)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(name, "decompressed", error) from error
    budget.take(name, len(inner))
    return inner


def _members(name: str, data: bytes, budget: _Budget, depth: int) -> Iterator[ReportInput]:
    # The list of members is made as a whole, however long it is.
    if data.count(_MEMBER) > budget.members_left:
        refused = FileAccessError(name, f"more than {budget.limits.members} members")
        refused.remedy = "unpack it, and give the folder"
        raise refused
    try:
        archive = zipfile.ZipFile(BytesIO(data))
        members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _damaged(name, "unpacked", error) from error
    budget.members_left -= len(members)
    for member in members:
        if member.is_dir():
            continue
        called = printable(f"{name}:{member.filename}")
        if budget.bytes_left < 0:
            raise budget.error(name)
        try:
            inner = _member(archive, member, called, budget)
        except MachtraceError as error:
            yield ReportInput(called, error, is_named=False)
            continue
        yield from _unpacked(called, inner, budget, is_named=False, depth=depth + 1)


def _member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, called: str, budget: _Budget
) -> bytes:
    try:
        with archive.open(member) as packed:
            inner = read_within(packed, budget.next_bytes)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error) as error:
        # RuntimeError: it is encrypted; NotImplementedError, a kind of it: packed in another way.
        raise _damaged(called, "unpacked", error) from error
    budget.take(called, len(inner))
    return inner
