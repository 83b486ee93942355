"""Who writes to a warehouse, and the log that is written now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from machtrace.errors import FileAccessError
from machtrace.warehouse.log import LogWriter
from machtrace.warehouse.segment_files import sync_folder

_LOG_BYTES = 1 << 28
"""The size at which the next log begins."""


class WriterLock:
    """One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: int | None = None

    def acquire(self) -> None:
        """Become the writer, if this process is not yet.

        Raises:
            FileAccessError: another process writes.
        """
        if self._lock is not None:
            return
        import fcntl

        path = self._folder / "writer.lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FileAccessError(str(path), error.strerror or str(error)) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise FileAccessError(str(self._folder), "another process writes to it") from None
        self._lock = lock

    def release(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class Logs:
    """The logs of a warehouse, in sequence; only the last one grows.

    One thread may append while another one begins the next log.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log: LogWriter | None = None
        self._lock = Lock()

    @property
    def end(self) -> tuple[str, int] | None:
        """The log that is written and its size on the disk; None before the first record."""
        log = self._log
        return None if log is None else (log.path.name, log.size)

    @property
    def written(self) -> list[str]:
        """The logs that are not written any more, by name; :meth:`begin_next` was called."""
        last = "" if self._log is None else self._log.path.name
        return sorted(path.name for path in self.folder.glob("*.log") if path.name < last)

    def append(self, bodies: Sequence[bytes]) -> list[str]:
        """Append records, and return their identifiers; they are on the disk then.

        Raises:
            FileAccessError: they cannot be written; none of them stays.
        """
        with self._lock:
            log = self._with_room(_LOG_BYTES)
            return [f"{log.path.stem}-{offset}" for offset in log.append(bodies)]

    def begin_next(self) -> None:
        """Begin another log, so that none that has records is written any more.

        Raises:
            FileAccessError: it cannot be created.
        """
        with self._lock:
            self._with_room(1)

    def close(self) -> None:
        """Close the log that is written."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _with_room(self, most: int) -> LogWriter:
        if self._log is None:
            paths = sorted(self.folder.glob("*.log"))
            self._log = self._opened(paths[-1] if paths else self.folder / f"{1:08}.log")
        if self._log.size >= most:
            full = self._log
            # Another thread may read `end` at any moment.
            self._log = self._opened(full.path.with_name(f"{int(full.path.stem) + 1:08}.log"))
            full.close()
        return self._log

    def _opened(self, path: Path) -> LogWriter:
        log = LogWriter(path)
        sync_folder(self.folder)
        return log
