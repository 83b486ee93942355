"""The folder that indices of debug information are kept in, by name, up to a size.

An index is written beside its place and moved there, so that whoever finds it finds all of it.
It can be removed while it is in use: those who mapped it keep it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import monotonic, sleep, time
from zlib import crc32

from machtrace.images.user_folder import UserFolder

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
