"""Unpacking zip archives (.ipa, dSYM.zip, …) within limits, member by member.

Only members that begin like an image or another archive are unpacked, each into a file of its own
that is gone when the next one is asked for. Names of members are shown and never used as paths.
Sizes are checked as they are declared, against limits, and as they turn out, against what was
declared. Source: PKWARE's *.ZIP File Format Specification* (APPNOTE.TXT), sections 4.3 and 4.4.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from machtrace.errors import FileAccessError
from machtrace.symbolstore.atomic_write import scratch_file, write_all
from machtrace.symbolstore.contained_images import Skipped, SkipReason, may_hold_images

_CHUNK = 1 << 20
_START = 8
"""Bytes of a member that say whether it is worth unpacking."""
_SMALL = 64 << 20
"""Bytes below which a member may be packed as tightly as it likes."""
_ENCRYPTED = 0x1
_END_RECORD = struct.Struct("<4s4H2LH")
_END_LOCATOR_64 = struct.Struct("<4sLQL")
_END_RECORD_64 = struct.Struct("<4sQ2H2L4Q")
_LONGEST_COMMENT = (1 << 16) - 1
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2}
"""How members may be packed: what needs no more memory than their bytes are worth."""

_FAILURES = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    OSError,
)
"""What reading a broken archive may raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    """What is unpacked at most, all in all for one command."""

    member_bytes: int = 8 << 30
    """Of one member."""
    total_bytes: int = 64 << 30
    """Of all members that are unpacked."""
    directory_bytes: int = 64 << 20
    """Of an archive's list of members, which is read at once."""
    ratio: int = 250
    """How many times a large member may be its packed size."""
    depth: int = 3
    """How many archives may be in each other."""


class UnpackedMember(NamedTuple):
    """A member of an archive, as a file that is there until the next one is asked for."""

    path: Path
    label: str
    """The archives that it is in and its name, for people."""
    name: str
    """As the archive has it."""


class Unpacker:
    """Unpacks archives into ``scratch``, within ``limits`` for all of them together."""

    __slots__ = ("_limits", "_room", "_scratch")

    def __init__(self, limits: UnpackLimits, scratch: Path) -> None:
        self._limits = limits
        self._room = limits.total_bytes
        self._scratch = scratch

    def members(
        self,
        path: Path,
        label: str,
        *,
        depth: int = 1,
        progress: Callable[[int], object] = lambda _: None,
    ) -> Iterator[UnpackedMember | Skipped]:
        """Each member of the archive at ``path`` that may hold images, unpacked.

        ``depth`` is 1 for an archive that is in no other. ``progress`` is told of packed bytes as
        they are dealt with.

        Raises:
            FileAccessError: there is no room for unpacked bytes, or no way to write them.
        """
        if depth > self._limits.depth:
            yield Skipped(label, SkipReason.TOO_DEEP, f"the limit is {self._limits.depth}")
            return
        try:
            size = path.stat().st_size
            too_large = self._check_directory(path, size, label)
            archive = None if too_large else zipfile.ZipFile(path)
        except _FAILURES as error:
            yield Skipped(label, SkipReason.MALFORMED, _reason(error))
            return
        if archive is None:
            yield too_large or Skipped(label, SkipReason.TOO_LARGE)
            return
        with archive:
            for member in archive.infolist():
                yield from self._member(archive, member, f"{label}: {member.filename}")
                progress(min(member.compress_size, size))

    def _member(
        self, archive: zipfile.ZipFile, member: zipfile.ZipInfo, label: str
    ) -> Iterator[UnpackedMember | Skipped]:
        try:
            if not _is_of_interest(archive, member):
                return
        except _FAILURES as error:
            yield Skipped(label, SkipReason.MALFORMED, _reason(error))
            return
        refused = self._refusal(member, label)
        if refused is not None:
            yield refused
            return
        with _scratch(self._scratch) as path:
            try:
                with archive.open(member) as source:
                    _copy(source, member.file_size, path)
            except FileAccessError:
                raise  # it is an OSError too, of the scratch file
            except _FAILURES as error:
                yield Skipped(label, SkipReason.MALFORMED, _reason(error))
            else:
                yield UnpackedMember(path, label, member.filename)

    def _check_directory(self, path: Path, size: int, label: str) -> Skipped | None:
        with path.open("rb") as file:
            directory = _directory_size(file, size)
        if directory <= self._limits.directory_bytes:
            return None
        return Skipped(label, SkipReason.TOO_LARGE, f"its list of members has {directory:,} bytes")

    def _refusal(self, member: zipfile.ZipInfo, label: str) -> Skipped | None:
        size, packed, limits = member.file_size, member.compress_size, self._limits
        if member.flag_bits & _ENCRYPTED:
            return Skipped(label, SkipReason.ENCRYPTED)
        if member.compress_type not in _METHODS:
            return Skipped(label, SkipReason.MALFORMED, f"packed by method {member.compress_type}")
        if size > limits.member_bytes:
            detail = f"{size:,} bytes, the limit is {limits.member_bytes:,}"
        elif size > _SMALL and size > packed * limits.ratio:
            detail = f"{size:,} bytes packed into {packed:,}: more than {limits.ratio} to 1"
        elif size > self._room:
            detail = f"{size:,} bytes, of {limits.total_bytes:,} in all {self._room:,} are left"
        else:
            self._room -= size
            return None
        return Skipped(label, SkipReason.TOO_LARGE, detail)


def _is_of_interest(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bool:
    """Whether it may hold images; where that cannot be seen, it may."""
    is_folder = member.filename.endswith("/")  # is_dir() fails where there is no name
    if is_folder or stat.S_ISLNK(member.external_attr >> 16) or not member.file_size:
        return False
    if member.flag_bits & _ENCRYPTED or member.compress_type not in _METHODS:
        return PurePosixPath(member.filename).suffix in ("", ".dylib", ".so", ".zip", ".ipa")
    with archive.open(member) as source:
        return may_hold_images(source.read(_START))


def _copy(source: IO[bytes], size: int, into: Path) -> None:
    written = 0
    with into.open("wb", buffering=0) as file:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            if written > size:
                raise zipfile.BadZipFile(f"it has more than the {size:,} bytes it declares")
            try:
                write_all(file.fileno(), memoryview(chunk))
            except OSError as error:
                reason = error.strerror or "cannot be written"
                raise FileAccessError(str(into.parent), reason) from error
    if written != size:
        raise zipfile.BadZipFile(f"it has {written:,} of the {size:,} bytes it declares")


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            path = stack.enter_context(scratch_file(folder))
        except OSError as error:
            place = str(error.filename or folder)
            raise FileAccessError(place, error.strerror or "cannot be written") from error
        yield path


def _directory_size(file: IO[bytes], size: int) -> int:
    """Bytes of an archive's central directory, as the record at its end says; 0 without one."""
    tail = min(size, _LONGEST_COMMENT + _END_RECORD.size + _END_LOCATOR_64.size)
    file.seek(size - tail)
    data = file.read(tail)
    at = data.rfind(b"PK\x05\x06")
    if at < 0 or at + _END_RECORD.size > len(data):
        return 0
    declared: int = _END_RECORD.unpack_from(data, at)[5]
    locator = at - _END_LOCATOR_64.size
    if locator >= 0 and data[locator : locator + 4] == b"PK\x06\x07":
        file.seek(min(_END_LOCATOR_64.unpack_from(data, locator)[2], size))
        record = file.read(_END_RECORD_64.size)
        if len(record) == _END_RECORD_64.size:
            declared = _END_RECORD_64.unpack(record)[8]
    return min(declared, size)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return (error.strerror or "cannot be read").lower()
    return str(error) or "it cannot be unpacked"
