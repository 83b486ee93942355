"""The files at a path: itself, a folder's contents, and members of archives.

Archives are gzip files and zip archives, opened within limits of size, number and depth. Files are
read lazily, one at a time; names in archives are only labels: nothing is unpacked to disk.
"""

from __future__ import annotations

import gzip
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Protocol

from machtrace.errors import FileAccessError, MachtraceError
from machtrace.formats.zip_archive import ZipError, ZipMember, ZipProblem, is_zip, read_members
from machtrace.frozen import dataclass
from machtrace.model.text import printable
from machtrace.reports.source import STANDARD_INPUT, ReportSource

_PART = 1 << 20
_GZIP = b"\x1f\x8b"


class Readable(Protocol):
    """A file of bytes."""

    def read(self, size: int, /) -> bytes:
        """Read up to ``size`` bytes; empty at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """Limits of reading."""

    file_bytes: int = 1 << 29
    """Bytes of one file, packed or not."""
    total_bytes: int = 1 << 33
    """Bytes of all unpacked contents of one file."""
    ratio: int = 200
    """Maximum expansion of a file beyond ``always_bytes``: text packs to about a tenth, archive
    bombs to a thousandth.
    """
    always_bytes: int = 1 << 26
    """Contents any file may have."""
    members: int = 100_000
    """Members of one file."""
    depth: int = 3
    """Nesting of archives."""


@dataclass(frozen=True, slots=True)
class ReportInput:
    """A file to read, or the reason why it cannot be read."""

    name: str
    """As the user knows it: a path, and for archives the member after a colon; printable."""
    source: ReportSource | MachtraceError
    is_named: bool
    """Whether the user named the file itself rather than its folder or archive."""

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.source.data) if isinstance(self.source, ReportSource) else 0


def read_within(file: Readable, limit: int) -> bytes:
    """Read ``file``; if larger than ``limit``, slightly more than that.

    In chunks, since files allocate as much as is requested.
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
    """Yield the file itself, or the members of an archive. Raises nothing."""
    yield from _unpacked(name, data, _Budget(limits, len(data)), is_named=is_named, depth=0)


class _Budget:
    """The remaining limits of one file of the user's."""

    def __init__(self, limits: InputLimits, size: int) -> None:
        self.limits = limits
        self.total = min(limits.total_bytes, max(limits.always_bytes, limits.ratio * size))
        self.bytes_left = self.total
        self.members_left = limits.members

    @property
    def next_bytes(self) -> int:
        """The maximum size of the next file."""
        return max(min(self.limits.file_bytes, self.bytes_left), 0)

    def take(self, name: str, size: int) -> None:
        """Account for ``size`` bytes; raise FileAccessError if the limit is exceeded."""
        is_over = size > self.next_bytes
        self.bytes_left -= size
        if is_over:
            raise self.error(name)

    def error(self, name: str) -> FileAccessError:
        """Return the error for an exceeded limit."""
        most = min(self.limits.file_bytes, self.total)
        error = FileAccessError(name, f"unpacked it exceeds the limit of {most} bytes")
        error.remedy = "unpack it, if you trust it, and pass the files"
        return error


def _unpacked(
    name: str, data: bytes, budget: _Budget, *, is_named: bool, depth: int
) -> Iterator[ReportInput]:
    if not data.startswith(_GZIP) and not is_zip(data):
        yield ReportInput(name, ReportSource(name, data), is_named)
        return
    try:
        if depth >= budget.limits.depth:
            refused = FileAccessError(name, f"archives nested {depth} deep")
            refused.remedy = "unpack it, if you trust it, and pass the files"
            raise refused
        if data.startswith(_GZIP):
            inner = _gunzip(name, data, budget)
            del data
            yield from _unpacked(name, inner, budget, is_named=is_named, depth=depth + 1)
            return
        yield from _members(name, data, budget, depth)
    except MachtraceError as error:
        yield ReportInput(name, error, is_named)


def _damaged(name: str, action: str, error: Exception) -> FileAccessError:
    refused = FileAccessError(name, f"cannot be {action} ({error})")
    refused.remedy = "copy the file again, or unpack it and pass the contents"
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
    try:
        members = read_members(memoryview(data), member_limit=budget.members_left)
    except ZipError as error:
        if error.problem is not ZipProblem.TOO_MANY:
            raise _damaged(name, "unpacked", error) from error
        refused = FileAccessError(name, f"more than {budget.limits.members} members")
        refused.remedy = "unpack it, and pass the folder"
        raise refused from error
    budget.members_left -= len(members)
    for member in members:
        if member.name.endswith("/"):
            continue
        called = printable(f"{name}:{member.name}")
        if budget.bytes_left < 0:
            raise budget.error(name)
        try:
            inner = _member(member, called, budget)
        except MachtraceError as error:
            yield ReportInput(called, error, is_named=False)
            continue
        yield from _unpacked(called, inner, budget, is_named=False, depth=depth + 1)


def _member(member: ZipMember, called: str, budget: _Budget) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        for part in member.chunks():
            parts.append(part)
            size += len(part)
            if size > budget.next_bytes:
                break
    except ZipError as error:
        raise _damaged(called, "unpacked", error) from error
    budget.take(called, size)
    return b"".join(parts)


__all__ = ["InputLimits", "ReportInput", "count_files", "report_inputs"]


def report_inputs(
    path: str | Path, limits: InputLimits | None = None, *, without: Path | None = None
) -> Iterator[ReportInput]:
    """Yield the files at ``path``, those of folders sorted by name. Raises nothing.

    Args:
        path: a file or a folder.
        limits: of reading.
        without: a subfolder to skip, to which output is written.
    """
    limits = limits or InputLimits()
    for item, is_named in _files(Path(path), without):
        if isinstance(item, FileAccessError):
            yield ReportInput(item.path, item, is_named)
            continue
        name = printable(os.fspath(path) if is_named else str(item))  # a Path drops slashes
        try:
            data = _read(item, name, limits, is_named=is_named)
        except MachtraceError as error:
            yield ReportInput(name, error, is_named)
            continue
        yield from unpacked(name, data, limits, is_named=is_named)


def count_files(path: str | Path, *, without: Path | None = None) -> int:
    """Count the files that :func:`report_inputs` reads, archives as one."""
    return sum(1 for _ in _files(Path(path), without))


def _files(path: Path, without: Path | None) -> Iterator[tuple[Path | FileAccessError, bool]]:
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        is_folder = False
    if not is_folder:
        yield path, True
        return
    unread: list[OSError] = []
    left_out = None if without is None else os.path.realpath(without)
    for folder, folders, names in os.walk(path, onerror=unread.append):
        folders[:] = sorted(
            one for one in folders if os.path.realpath(Path(folder, one)) != left_out
        )
        for name in sorted(names):
            yield Path(folder, name), False
    for error in unread:
        yield FileAccessError(printable(str(error.filename)), _reason(error)), False


def _read(path: Path, name: str, limits: InputLimits, *, is_named: bool) -> bytes:
    try:
        mode = path.stat().st_mode
        # A pipe that only happens to be in a folder may never have a writer.
        if not stat.S_ISREG(mode) and not (is_named and stat.S_ISFIFO(mode)):
            raise FileAccessError(name, "not a regular file")
        with path.open("rb") as file:
            data = read_within(file, limits.file_bytes)
    except (OSError, ValueError) as error:
        if isinstance(error, MachtraceError):
            raise
        raise FileAccessError(name, _reason(error)) from error
    if len(data) > limits.file_bytes:
        raise FileAccessError(name, f"larger than {limits.file_bytes} bytes")
    return data


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or "cannot be read").lower()


def standard_input() -> Iterator[ReportInput]:
    """Yield the piped file, or the members of an archive. Raises nothing."""
    name, limits = STANDARD_INPUT, InputLimits()
    try:
        data = read_within(sys.stdin.buffer, limits.file_bytes)
    except (AttributeError, OSError, ValueError):  # it was closed
        error = FileAccessError(name, "cannot be read")
        error.remedy = "pipe a report into it, or pass file names"
        yield ReportInput(name, error, is_named=True)
        return
    if len(data) > limits.file_bytes:
        error = FileAccessError(name, f"larger than {limits.file_bytes} bytes")
        yield ReportInput(name, error, is_named=True)
        return
    yield from unpacked(name, data, limits, is_named=True)
