"""Indices of debug information: built once, cached in a folder, read by any number of processes.

An index is named after its file's identifier; that of an object file, which has none, after a hash
of its bytes. It is written beside its final name and renamed, so that a reader sees all of it. It
can be removed while it is in use: mappings stay valid.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from hashlib import blake2b
from pathlib import Path
from time import monotonic, sleep, time
from uuid import UUID
from zlib import crc32

from machtrace.atomic_write import UNFINISHED, replace_file
from machtrace.errors import DebugInformationError, FileAccessError, FormatError
from machtrace.images.debug_file import DebugFile
from machtrace.images.open_file import open_image_file
from machtrace.images.store_layout import UserFolder
from machtrace.lines.index import DebugIndex
from machtrace.lines.index_builder import (
    DEFAULT_LIMITS,
    BuildLimits,
    ObjectBytes,
    build_index,
    build_indices,
)
from machtrace.lines.symcache import VERSION, SymCache
from machtrace.model.image import ImageFormat

CACHE_VARIABLE = "MACHTRACE_CACHE"
"""The environment variable with the folder of what can be rebuilt."""
DEFAULT_LIMIT = 4 << 30
"""Bytes of indices in the folder: of some hundred programs."""

_SUFFIX = ".symcache"
_LOCKS = 64
"""Files that builders lock, by a hash of the index's name, so that their number is bounded."""
_LOCK_PAUSE = 0.02
"""Seconds between attempts to lock."""
_ABANDONED = 24 * 3600
"""Seconds after which an unfinished file is a dead process's."""


def default_index_folder() -> Path:
    """Return the folder of indices.

    In ``$MACHTRACE_CACHE``, else in the platform's folder for what can be rebuilt: Caches on a
    Mac, ``%LOCALAPPDATA%`` on Windows, ``$XDG_CACHE_HOME`` or ``~/.cache`` elsewhere.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser() / "debug-indices"
    return UserFolder.CACHE.path() / "debug-indices"


class IndexFolder:
    """Files by name, up to a size. If the folder fails, nothing is stored, which is no error."""

    def __init__(self, directory: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        """``directory`` is created at the first write."""
        self.directory = directory
        self.limit = limit
        """In bytes; beyond it the least recently used are removed."""

    def path(self, name: str) -> Path:
        """Return the path of the file called ``name``."""
        return self.directory / f"{name}{_SUFFIX}"

    def used(self, name: str) -> None:
        """Mark the file as just used."""
        with suppress(OSError):
            os.utime(self.path(name))

    def write(self, name: str, data: bytes | memoryview) -> bool:
        """Write ``data`` atomically; return whether that succeeded."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(str(self.path(name)), [data], is_private=True, is_durable=False)
        except (OSError, FileAccessError):
            return False
        return True

    @contextmanager
    def locked(self, name: str, seconds: float) -> Iterator[None]:
        """Keep other processes from building the same file; wait at most ``seconds``.

        After that, or without locks, continue all the same: files are written atomically.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.directory / f"lock-{crc32(name.encode()) % _LOCKS:02d}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # closed in children
        except OSError:
            yield
            return
        try:
            _lock(descriptor, monotonic() + seconds)
            yield
        finally:
            os.close(descriptor)  # which unlocks

    def evict(self, *, keep: Collection[str]) -> None:
        """Remove the least recently used files until the limit holds; never ``keep``."""
        files = []
        try:
            with os.scandir(self.directory) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(_SUFFIX):
                        files.append((status.st_mtime, status.st_size, entry.path))
                    elif (
                        entry.name.startswith(UNFINISHED) and time() - status.st_mtime > _ABANDONED
                    ):
                        _remove(entry.path)
        except OSError:
            return
        total = sum(size for _, size, _ in files)
        retained = {str(self.path(name)) for name in keep}
        for _, size, path in sorted(files):
            if total <= self.limit:
                break
            if path not in retained and _remove(path):
                total -= size


def _remove(path: str) -> bool:
    try:
        os.unlink(path)  # noqa: PTH108 (of a name)
    except OSError:  # on Windows, while it is mapped
        return False
    return True


def _lock(descriptor: int, deadline: float) -> None:
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # Windows: two processes may build the same index
        return
    while monotonic() < deadline:
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            sleep(_LOCK_PAUSE)
        except OSError:  # a file system without locks
            return
        else:
            return


_REVISION = 1
"""Raised when the same version of index would be built differently."""
_HASHED = 1 << 15
"""Bytes at either end of a file that distinguish it from another file with its UUID."""
_BATCH = 64 << 20
"""Bytes of object files for one worker, which takes a tenth of a second to start."""
_MAX_IN_BATCH = 512


class IndexCache:
    """Finds indices in a folder, or has them built."""

    def __init__(self, folder: IndexFolder | None, *, limits: BuildLimits = DEFAULT_LIMITS) -> None:
        """Open nothing yet."""
        self.folder = folder
        """The folder of indices; None stores none."""
        self.limits = limits
        """The limits of building one index."""

    @classmethod
    def of_user(cls) -> IndexCache:
        """Return the cache in this user's folder: see :func:`default_index_folder`."""
        return cls(IndexFolder(default_index_folder()))

    def index(self, file: DebugFile) -> DebugIndex:
        """Return the debug information of ``file``, which has some.

        If nothing can be stored (a folder that cannot be written to, a full disk, a file without an
        identifier), the index is built all the same, and held in memory.

        Raises:
            DebugInformationError: no index can be built of the file.
        """
        return DebugIndex(self.symcache(file), moved=file.source_paths.now)

    def indices(self, objects: Sequence[ObjectBytes]) -> list[SymCache | str]:
        """Return the index of each object file, or why there is none. Raises nothing."""
        names = [
            None if self.folder is None else _object_index_name(object_) for object_ in objects
        ]
        indices: list[SymCache | str | None] = [self._get(name) for name in names]
        missing = [number for number, index in enumerate(indices) if index is None]
        for batch in _batches(missing, objects):
            built = build_indices([objects[number] for number in batch], self.limits)
            for number, data in zip(batch, built, strict=True):
                indices[number] = (
                    data
                    if isinstance(data, str)
                    else self._put_object(names[number], data, objects[number])
                )
        if missing:
            self._evict(names[number] for number in missing)
        return ["no index was built" if index is None else index for index in indices]

    def symcache(self, file: DebugFile) -> SymCache:
        """Return the index of ``file`` as stored; raises as :meth:`index` does."""
        name, uuid = index_name(file), symcache_uuid(file)
        index = self._get(name, uuid)
        if index is not None:
            return index
        with self._locked(name, self.limits.seconds_for(len(file.data))):
            index = self._get(name, uuid)  # another process may have built it meanwhile
            if index is not None:
                return index
            try:
                index = self._put(name, build_index(file, self.limits), file.path)
            except FormatError as error:
                raise DebugInformationError(file.path, _malformed(error)) from error
        self._evict([name])
        return index

    def _put_object(
        self, name: str | None, data: memoryview, source: ObjectBytes
    ) -> SymCache | str:
        try:
            return self._put(name, data, source.source)
        except FormatError as error:
            return _malformed(error)

    def _get(self, name: str | None, uuid: UUID | None = None) -> SymCache | None:
        """Return the index in the folder; None if none exists, or a malformed one, or another's."""
        if self.folder is None or name is None:
            return None
        path = self.folder.path(name)
        try:
            index = SymCache(open_image_file(path), str(path))
        except (FileAccessError, FormatError):
            return None
        if uuid is not None and index.uuid != uuid:
            return None
        self.folder.used(name)
        return index

    def _put(self, name: str | None, data: memoryview, source: str) -> SymCache:
        """Store a new index and return it.

        Raises:
            FormatError: it is malformed.
        """
        index = SymCache(data, f"index of {source}")
        _ = index.columns  # checked once, when it is stored
        if self.folder is None or name is None or not self.folder.write(name, data):
            return index
        # What is mapped, the system can drop from memory and read again.
        return self._get(name) or index

    def _locked(self, name: str | None, seconds: float) -> AbstractContextManager[None]:
        if self.folder is None or name is None:
            return nullcontext()
        return self.folder.locked(name, seconds)

    def _evict(self, new: Iterable[str | None]) -> None:
        if self.folder is not None:
            self.folder.evict(keep=[name for name in new if name is not None])


def _malformed(error: FormatError) -> str:
    return f"a malformed index was built ({error})"


def index_name(file: DebugFile) -> str | None:
    """Return the name of the index of ``file`` in a folder; None if the file has no identifier.

    Two files may have one UUID: a dSYM can be rebuilt, with more in it.
    """
    if file.uuid is None:
        return None
    identifier = file.uuid.hex if isinstance(file.uuid, UUID) else str(file.uuid)
    ends = blake2b(file.data[:_HASHED], digest_size=8)
    ends.update(file.data[-_HASHED:])
    ends.update(len(file.data).to_bytes(8, "little"))
    return f"{identifier}-{file.arch.value}-{ends.hexdigest()}-{VERSION}.{_REVISION}"


def _object_index_name(one: ObjectBytes) -> str:
    """Return a name made from all bytes of an object file, which has no identifier."""
    return f"object-{blake2b(one.data, digest_size=20).hexdigest()}-{VERSION}.{_REVISION}"


def symcache_uuid(file: DebugFile) -> UUID | None:
    """Return the UUID that an index of ``file`` states."""
    if file.contents.format is ImageFormat.MACHO:
        return file.contents.image.uuid
    image = file.contents.image
    if image.build_id is None:
        return None
    start = image.build_id.value[:16].ljust(16, b"\0")
    return UUID(bytes_le=start) if image.layout.little_endian else UUID(bytes=start)


def _batches(numbers: list[int], objects: Sequence[ObjectBytes]) -> Iterator[list[int]]:
    batch: list[int] = []
    size = 0
    for number in numbers:
        if batch and (size + len(objects[number].data) > _BATCH or len(batch) == _MAX_IN_BATCH):
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += len(objects[number].data)
    if batch:
        yield batch
