"""Unpack zip archives (.ipa, dSYM.zip, …) within limits, member by member.

Only members that begin like an image or another archive are unpacked, each into a scratch file that
is removed when the next one is requested. Names of members are shown and never used as paths. Sizes
are checked as they are declared, against limits, and as they turn out, against the declared ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from machtrace.atomic_write import scratch_file, write_all
from machtrace.errors import FileAccessError
from machtrace.formats.zip_archive import ZipError, ZipMember, ZipProblem, read_members
from machtrace.frozen import dataclass
from machtrace.images.open_file import open_image_file
from machtrace.symbolstore.contained_images import Skipped, SkipReason, may_hold_images

_START = 8
"""Bytes of a member that show whether it is worth unpacking."""
_SMALL = 64 << 20
"""Bytes below which a member may have any ratio."""
_REASONS = {
    ZipProblem.ENCRYPTED: SkipReason.ENCRYPTED,
    ZipProblem.TOO_LARGE: SkipReason.TOO_LARGE,
    ZipProblem.TOO_MANY: SkipReason.TOO_LARGE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    """Limits of unpacking, for all archives of one command together."""

    member_bytes: int = 8 << 30
    """The largest member."""
    total_bytes: int = 64 << 30
    """All unpacked members together."""
    directory_bytes: int = 64 << 20
    """The largest list of members, which is read as a whole."""
    members: int = 500_000
    """Members of one archive."""
    ratio: int = 250
    """The highest ratio of a large member's size to its packed size."""
    depth: int = 3
    """The deepest nesting of archives."""


class UnpackedMember(NamedTuple):
    """A member of an archive, as a file that exists until the next one is requested."""

    path: Path
    label: str
    """The archives that it is in and its name, for users."""
    name: str
    """The name in the archive."""


class Unpacker:
    """Unpacks archives into ``scratch``, within ``limits`` for all of them together."""

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
        """Yield each member of the archive at ``path`` that may hold images, unpacked.

        ``depth`` is 1 for an archive that is in no other. ``progress`` receives numbers of packed
        bytes as they are processed.

        Raises:
            FileAccessError: unpacked bytes cannot be written, or the disk is full.
        """
        limits = self._limits
        if depth > limits.depth:
            yield Skipped(label, SkipReason.TOO_DEEP, f"the limit is {limits.depth}")
            return
        try:
            data = open_image_file(path)
            members = read_members(
                data, directory_limit=limits.directory_bytes, member_limit=limits.members
            )
        except FileAccessError as error:
            yield Skipped(label, SkipReason.MALFORMED, error.reason)
            return
        except ZipError as error:
            yield _skipped(label, error)
            return
        for member in members:
            yield from self._member(member, f"{label}: {member.name}")
            progress(min(member.packed_size, len(data)))

    def _member(self, member: ZipMember, label: str) -> Iterator[UnpackedMember | Skipped]:
        try:
            if not _is_of_interest(member):
                return
            member.check()
            self._take(member)
            with _scratch(self._scratch) as path:
                _copy(member, path)
                yield UnpackedMember(path, label, member.name)
        except ZipError as error:
            yield _skipped(label, error)

    def _take(self, member: ZipMember) -> None:
        """Take a member's declared size from what is left; raise ZipError beyond a limit."""
        size, packed, limits = member.size, member.packed_size, self._limits
        if size > limits.member_bytes:
            detail = f"{size:,} bytes, the limit is {limits.member_bytes:,}"
        elif size > _SMALL and size > packed * limits.ratio:
            detail = f"{size:,} bytes packed into {packed:,}: more than {limits.ratio} to 1"
        elif size > self._room:
            detail = f"{size:,} bytes, of {limits.total_bytes:,} in all {self._room:,} are left"
        else:
            self._room -= size
            return
        raise ZipError(ZipProblem.TOO_LARGE, detail)


def _skipped(label: str, error: ZipError) -> Skipped:
    is_encrypted = error.problem is ZipProblem.ENCRYPTED
    reason = _REASONS.get(error.problem, SkipReason.MALFORMED)
    return Skipped(label, reason, "" if is_encrypted else str(error))


def _is_of_interest(member: ZipMember) -> bool:
    """Whether a member may hold images; if that cannot be seen, by its name."""
    if not member.is_file or not member.size:
        return False
    if member.problem is not None:
        return PurePosixPath(member.name).suffix in ("", ".dylib", ".so", ".zip", ".ipa")
    return may_hold_images(member.start(_START))


def _copy(member: ZipMember, into: Path) -> None:
    with into.open("wb", buffering=0) as file:
        for chunk in member.chunks():
            try:
                write_all(file.fileno(), chunk)
            except OSError as error:
                reason = error.strerror or "cannot be written"
                raise FileAccessError(str(into.parent), reason) from error


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            path = stack.enter_context(scratch_file(folder))
        except OSError as error:
            where = str(error.filename or folder)
            raise FileAccessError(where, error.strerror or "cannot be written") from error
        yield path
