"""Indices of debug information: made once, kept in a folder, read by any number of processes."""

from __future__ import annotations

from hashlib import blake2b
from uuid import UUID

from machtrace.errors import DebugInformationError, FileAccessError, FormatError
from machtrace.formats.macho.contents import FileContents
from machtrace.images.debug_file import DebugFile
from machtrace.lines.index import DebugIndex
from machtrace.images.open_file import open_image_file
from machtrace.lines.index_builder import DEFAULT_LIMITS, BuildLimits, build_index
from machtrace.lines.index_folder import IndexFolder, default_index_folder
from machtrace.lines.symcache import VERSION, SymCache

_REVISION = 1
"""Raised where the same version of index would be made in another way."""
_HASHED = 1 << 15
"""Bytes at either end of a file that tell it from another file with its UUID."""


class IndexCache:
    """Finds the index of a debug file in a folder, or has it made."""

    __slots__ = ("folder", "limits")

    def __init__(self, folder: IndexFolder | None, *, limits: BuildLimits = DEFAULT_LIMITS) -> None:
        """Open nothing yet."""
        self.folder = folder
        """Where indices are kept; None keeps none."""
        self.limits = limits
        """What the making of one index may take."""

    @classmethod
    def of_user(cls) -> IndexCache:
        """In this user's folder: see :func:`default_index_folder`."""
        return cls(IndexFolder(default_index_folder()))

    def index(self, file: DebugFile) -> DebugIndex:
        """The debug information of ``file``, which has some.

        Where nothing can be kept (a folder that cannot be written to, a full disk, a file without
        an identifier), the index is made all the same, and held in memory.

        Raises:
            DebugInformationError: nothing can be made of the file.
        """
        return DebugIndex(self._cache(file), moved=file.source_paths.now)

    def _cache(self, file: DebugFile) -> SymCache:
        folder, name = self.folder, index_name(file)
        if folder is None or name is None:
            return self._made(file)[0]
        kept = _cached_index(folder, name, file)
        if kept is not None:
            return kept
        with folder.locked(name, self.limits.seconds_for(len(file.data))):
            kept = _cached_index(folder, name, file)  # another process may have made it meanwhile
            if kept is not None:
                return kept
            made, data = self._made(file)
            is_written = folder.write(name, data)
        if is_written:
            folder.evict(keep=name)
        # What is mapped, the system can drop from memory and read again.
        return (_cached_index(folder, name, file) if is_written else None) or made

    def _made(self, file: DebugFile) -> tuple[SymCache, bytes]:
        data = build_index(file, self.limits)
        try:
            return SymCache(data, f"index of {file.path}"), data
        except FormatError as error:
            reason = f"an index was made that is bad ({error})"
            raise DebugInformationError(file.path, reason) from error


def index_name(file: DebugFile) -> str | None:
    """What the index of ``file`` is called in a folder; None where it says nothing of its identity.

    Two files may have one UUID: a dSYM can be made again, with more in it.
    """
    if file.uuid is None:
        return None
    identifier = file.uuid.hex if isinstance(file.uuid, UUID) else str(file.uuid)
    ends = blake2b(file.data[:_HASHED], digest_size=8)
    ends.update(file.data[-_HASHED:])
    ends.update(len(file.data).to_bytes(8, "little"))
    kind = f"{VERSION}.{_REVISION}"
    return f"{identifier}-{file.arch.value}-{ends.hexdigest()}-{kind}"


def symcache_uuid(file: DebugFile) -> UUID | None:
    """What an index of ``file`` says that it is of."""
    if isinstance(file.contents, FileContents):
        return file.contents.image.uuid
    image = file.contents.image
    if image.build_id is None:
        return None
    start = image.build_id.value[:16].ljust(16, b"\0")
    return UUID(bytes_le=start) if image.layout.little_endian else UUID(bytes=start)


def _cached_index(folder: IndexFolder, name: str, file: DebugFile) -> SymCache | None:
    """The index in the folder; None where there is none, or a bad one, or another's."""
    path = folder.path(name)
    try:
        cache = SymCache(open_image_file(path), str(path))
    except (FileAccessError, FormatError):
        return None
    if cache.uuid != symcache_uuid(file):
        return None
    folder.used(name)
    return cache
