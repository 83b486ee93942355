"""Indices of debug information: made once, kept in a folder, read by any number of processes.

Making the indices of object files: many in a child process, kept by what the files hold.

The folder that indices of debug information are kept in, by name, up to a size.

An index is written beside its place and moved there, so that whoever finds it finds all of it.
It can be removed while it is in use: those who mapped it keep it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import monotonic, sleep, time
from uuid import UUID
from zlib import crc32

from machtrace.errors import DebugInformationError, FileAccessError, FormatError
from machtrace.images.debug_file import DebugFile
from machtrace.images.open_file import open_image_file
from machtrace.images.store_layout import UserFolder
from machtrace.lines.index import DebugIndex
from machtrace.lines.index_builder import DEFAULT_LIMITS, BuildLimits, build_index, run_worker
from machtrace.lines.object_worker import RECORD
from machtrace.lines.symcache import VERSION, SymCache
from machtrace.model.image import ImageFormat

CACHE_VARIABLE = "MACHTRACE_CACHE"
"""The environment variable that says where to keep what can be made again."""
DEFAULT_LIMIT = 4 << 30
"""Bytes of indices that are kept: of some hundred programs."""

_SUFFIX = ".symcache"
_PART = ".part"
_LOCKS = 64
"""Files that builders lock, by a hash of the index's name, so that locks do not add up."""
_LOCK_PAUSE = 0.02
"""Seconds between attempts to lock."""
_ABANDONED = 24 * 3600
"""Seconds after which a file that was not finished is taken to be a dead process's."""


def default_index_folder() -> Path:
    """Where indices are kept unless a user says otherwise.

    In ``$MACHTRACE_CACHE``, else in the platform's folder for what can be made again: Caches on a
    Mac, ``%LOCALAPPDATA%`` on Windows, ``$XDG_CACHE_HOME`` or ``~/.cache`` elsewhere.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser() / "debug-indices"
    return UserFolder.CACHE.path() / "debug-indices"


class IndexFolder:
    """Files by name. No failure of the folder is an error: then nothing is kept."""

    __slots__ = ("directory", "limit")

    def __init__(self, directory: Path, *, limit: int = DEFAULT_LIMIT) -> None:
        """``directory`` is made when something is first written."""
        self.directory = directory
        self.limit = limit
        """In bytes; what was used least recently is removed beyond it."""

    def path(self, name: str) -> Path:
        """Where the file called ``name`` is, or would be."""
        return self.directory / f"{name}{_SUFFIX}"

    def used(self, name: str) -> None:
        """Note that the file is needed."""
        with suppress(OSError):
            os.utime(self.path(name))

    def write(self, name: str, data: bytes) -> bool:
        """Put ``data`` there at once, whole; whether it is there now."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self.directory, suffix=_PART, delete=False) as part:
                try:
                    part.write(data)
                    part.close()
                    os.replace(part.name, self.path(name))  # noqa: PTH105 (of a name)
                except OSError:
                    with suppress(OSError):
                        os.unlink(part.name)  # noqa: PTH108 (of a name)
                    raise
        except OSError:
            return False
        return True

    @contextmanager
    def locked(self, name: str, seconds: float) -> Iterator[None]:
        """Keep other processes from making the same file, for at most ``seconds``.

        Who has waited so long, or cannot lock, goes on without: files are whole all the same.
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

    def evict(self, *, keep: str) -> None:
        """Remove what was used least recently until the limit is kept; never ``keep``."""
        files = []
        try:
            with os.scandir(self.directory) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(_SUFFIX):
                        files.append((status.st_mtime, status.st_size, entry.path))
                    elif entry.name.endswith(_PART) and time() - status.st_mtime > _ABANDONED:
                        _remove(entry.path)
        except OSError:
            return
        total = sum(size for _, size, _ in files)
        kept = str(self.path(keep))
        for _, size, path in sorted(files):
            if total <= self.limit:
                break
            if path != kept and _remove(path):
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
    except ImportError:  # Windows: two processes may make the same index
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
    if file.contents.format is ImageFormat.MACHO:
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


_OBJECT_WORKER = "machtrace.lines.object_worker"
_BATCH = 64 << 20
"""Bytes of object files for one child, which takes a tenth of a second to start."""
_MOST_IN_BATCH = 512
_OBJECT_REVISION = 1


@dataclass(frozen=True, slots=True)
class ObjectBytes:
    """An object file to make an index of."""

    source: str
    """What to call it in errors."""
    data: bytes | bytearray


@dataclass(frozen=True, slots=True)
class ObjectIndices:
    """Makes indices, and keeps them where there is a folder for that."""

    folder: IndexFolder | None = None
    limits: BuildLimits = DEFAULT_LIMITS

    def make(self, objects: Sequence[ObjectBytes]) -> list[SymCache | str]:
        """The index of each object file, or why there is none. Raises nothing."""
        found: list[SymCache | str | None] = [self._kept(one) for one in objects]
        missing = [number for number, one in enumerate(found) if one is None]
        for batch in _batches(missing, objects):
            made = self._made([objects[number] for number in batch])
            for number, index in zip(batch, made, strict=True):
                found[number] = self._checked(objects[number], index)
        return ["no index was made" if one is None else one for one in found]

    def _kept(self, one: ObjectBytes) -> SymCache | None:
        if self.folder is None:
            return None
        name = _object_index_name(one)
        path = self.folder.path(name)
        try:
            cache = SymCache(open_image_file(path), str(path))
        except (FileAccessError, FormatError):
            return None
        self.folder.used(name)
        return cache

    def _checked(self, one: ObjectBytes, index: bytes | str) -> SymCache | str:
        if isinstance(index, str):
            return index
        try:
            cache = SymCache(index, f"index of {one.source}")
        except FormatError as error:
            return f"an index was made that is bad ({error})"
        if self.folder is not None and self.folder.write(_object_index_name(one), index):
            self.folder.evict(keep=_object_index_name(one))
        return cache

    def _made(self, objects: list[ObjectBytes]) -> list[bytes | str]:
        """Of each its index or the reason; a child that dies is followed by one for the rest."""
        made: list[bytes | str] = []
        while len(made) < len(objects):
            rest = objects[len(made) :]
            done, reason = self._run(rest)
            made += done
            if len(done) < len(rest):
                made.append(reason)
        return made

    def _run(self, objects: list[ObjectBytes]) -> tuple[list[bytes | str], str]:
        size = sum(len(one.data) for one in objects)
        task = replace(self.limits.task(size), output=self.limits.output)  # of each object file
        sizes = [str(len(one.data)) for one in objects]
        answer = run_worker(
            _OBJECT_WORKER,
            [task.text(), *sizes],
            b"".join(one.data for one in objects),
            seconds=self.limits.patience * self.limits.seconds_for(size),
        )
        reason = answer.problem or "no answer"
        if not answer.was_started:
            return [reason] * len(objects), reason
        return list(islice(_records(answer.output), len(objects))), reason


def _records(output: bytes) -> Iterator[bytes | str]:
    at = 0
    while at + RECORD.size <= len(output):
        status, size = RECORD.unpack_from(output, at)
        at += RECORD.size
        content = output[at : at + size]
        if len(content) < size:
            return
        yield content if status == 0 else content.decode("utf-8", "replace")
        at += size


def _batches(numbers: list[int], objects: Sequence[ObjectBytes]) -> Iterator[list[int]]:
    batch: list[int] = []
    size = 0
    for number in numbers:
        if batch and (size + len(objects[number].data) > _BATCH or len(batch) == _MOST_IN_BATCH):
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += len(objects[number].data)
    if batch:
        yield batch


def _object_index_name(one: ObjectBytes) -> str:
    """Object files have no identifier: the name is made from all that they hold."""
    return f"object-{blake2b(one.data, digest_size=20).hexdigest()}-{VERSION}.{_OBJECT_REVISION}"
