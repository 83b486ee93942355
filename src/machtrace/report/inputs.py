"""The files that paths lead to: themselves, what is in folders, and what is packed in them.

Packed are gzip files and zip archives, within limits of size, number and depth. Names in archives
only say what to call a report: nothing is unpacked to disk.
"""

from __future__ import annotations

import gzip
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from machtrace.errors import FileAccessError, MachtraceError
from machtrace.report.source import ReportSource

_GZIP = b"\x1f\x8b"
_ZIP = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """How much is read."""

    file_bytes: int = 1 << 29
    """Of one file, unpacked."""
    total_bytes: int = 1 << 33
    """Of everything that one archive holds, unpacked."""
    members: int = 100_000
    """Of one archive."""
    depth: int = 3
    """Archives in archives."""


@dataclass(frozen=True, slots=True)
class ReportInput:
    """A file to read, or why it cannot be."""

    name: str
    """As the user knows it: a path, and in archives the member behind a colon."""
    source: ReportSource | MachtraceError
    is_named: bool
    """Whether the user gave its path, and did not only give a folder or an archive that has it."""


def report_inputs(path: str | Path, limits: InputLimits | None = None) -> Iterator[ReportInput]:
    """What ``path`` leads to, files of folders in the order of their names. Raises nothing."""
    limits = limits or InputLimits()
    for one, is_named in _files(Path(path)):
        try:
            data = _read(one, limits)
        except MachtraceError as error:
            yield ReportInput(str(one), error, is_named)
            continue
        yield from _unpacked(str(one), data, _Budget(limits), is_named=is_named)


def _files(path: Path) -> Iterator[tuple[Path, bool]]:
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        is_folder = False
    if not is_folder:
        yield path, True
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            yield Path(folder) / name, False


def _read(path: Path, limits: InputLimits) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISFIFO(status.st_mode):
            raise FileAccessError(str(path), "no file that can be read")
        if status.st_size > limits.file_bytes:
            raise FileAccessError(str(path), f"larger than {limits.file_bytes} bytes")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, MachtraceError):
            raise
        reason = (getattr(error, "strerror", None) or "cannot be read").lower()
        raise FileAccessError(str(path), reason) from error


class _Budget:
    """What is left of the limits of one file that the user has."""

    def __init__(self, limits: InputLimits) -> None:
        self.limits = limits
        self.bytes_left = limits.total_bytes
        self.members_left = limits.members

    def take(self, name: str, size: int) -> None:
        """Raises FileAccessError: there is more of it than is read."""
        self.bytes_left -= size
        if self.bytes_left < 0:
            reason = f"more than {self.limits.total_bytes} bytes when unpacked"
            raise FileAccessError(name, reason)


def _unpacked(
    name: str, data: bytes, budget: _Budget, *, is_named: bool, depth: int = 0
) -> Iterator[ReportInput]:
    is_packed = data.startswith((_GZIP, _ZIP, _EMPTY_ZIP))
    if not is_packed:
        yield ReportInput(name, ReportSource(name, data), is_named)
        return
    try:
        if depth >= budget.limits.depth:
            raise FileAccessError(name, f"archives in each other, {depth} deep")
        if data.startswith(_GZIP):
            inner = _gunzip(name, data, budget)
            yield from _unpacked(name, inner, budget, is_named=is_named, depth=depth + 1)
            return
        yield from _members(name, data, budget, depth)
    except MachtraceError as error:
        yield ReportInput(name, error, is_named)


def _gunzip(name: str, data: bytes, budget: _Budget) -> bytes:
    limit = min(budget.limits.file_bytes, budget.bytes_left)
    try:
        with gzip.GzipFile(fileobj=BytesIO(data)) as packed:
            inner = packed.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileAccessError(name, f"cannot be decompressed ({error})") from error
    if len(inner) > limit:
        raise FileAccessError(name, f"more than {limit} bytes when unpacked")
    budget.take(name, len(inner))
    return inner


def _members(name: str, data: bytes, budget: _Budget, depth: int) -> Iterator[ReportInput]:
    try:
        archive = zipfile.ZipFile(BytesIO(data))
        members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise FileAccessError(name, f"cannot be unpacked ({error})") from error
    budget.members_left -= len(members)
    if budget.members_left < 0:
        raise FileAccessError(name, f"more than {budget.limits.members} members")
    for member in members:
        if member.is_dir():
            continue
        called = f"{name}:{member.filename}"
        try:
            inner = _member(archive, member, called, budget)
        except MachtraceError as error:
            yield ReportInput(called, error, is_named=False)
            continue
        yield from _unpacked(called, inner, budget, is_named=False, depth=depth + 1)


def _member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, called: str, budget: _Budget
) -> bytes:
    limit = min(budget.limits.file_bytes, budget.bytes_left)
    try:
        with archive.open(member) as packed:
            inner = packed.read(limit + 1)
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error) as error:
        # RuntimeError: it is encrypted; NotImplementedError, a kind of it: packed in another way.
        raise FileAccessError(called, f"cannot be unpacked ({error})") from error
    if len(inner) > limit:
        raise FileAccessError(called, f"more than {limit} bytes when unpacked")
    budget.take(called, len(inner))
    return inner
