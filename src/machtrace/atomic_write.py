"""Write files that appear whole or not at all: new ones, and ones that replace others."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from machtrace.errors import FileAccessError, MachtraceError

_CHUNK = 1 << 20
"""Bytes written or compared at once."""
_OWNER_ONLY = 0o600
_ANYBODY = 0o666
_FLAGS = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    # Not inherited by child processes; and on Windows without line ends of its own.
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOINHERIT", 0)
    | getattr(os, "O_BINARY", 0)
)

UNFINISHED = ".unfinished-"
"""The prefix of the names of files while they are written."""


def replace_file(
    path: str,
    parts: Iterable[bytes | memoryview],
    *,
    is_private: bool = False,
    is_durable: bool = True,
) -> int:
    """Write ``parts`` to ``path`` and return the number of bytes.

    They go to a new file in the same folder, which is renamed when it is whole. It has the
    permissions of the file that it replaces, else those that the umask leaves. A symbolic link is
    followed. A pipe or a terminal is written to directly.

    Args:
        path: the file.
        parts: its bytes.
        is_private: whether only its owner may read and write it, as for the memory of a process.
        is_durable: whether they must be on the disk before the file is renamed.

    Raises:
        FileAccessError: the file cannot be written; a previous file is unchanged.
    """
    try:
        mode = _mode(path)
        if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            with Path(path).open("wb", buffering=0) as sink:
                return sum(write_all(sink.fileno(), part) for part in parts)
        # A directory is refused by the renaming.
        permissions = _OWNER_ONLY if is_private else stat.S_IMODE(mode) if mode else None
        return _replace(Path(os.path.realpath(path)), parts, permissions, is_durable=is_durable)
    except MachtraceError:
        raise  # of who makes the parts
    except (OSError, ValueError) as error:
        # ValueError: a NUL in the path.
        reason = getattr(error, "strerror", None) or str(error)
        refused = FileAccessError(path, reason[:1].lower() + reason[1:])
        refused.remedy = "pass the name of a file in a folder that is writable and has room"
        raise refused from error


def write_new(path: Path, data: memoryview, progress: Callable[[int], object] | None) -> bool:
    """Write ``data`` to ``path``, and create its folders; False if the file exists already.

    Raises:
        OSError: it cannot be written.
    """
    if os.path.lexists(path):
        return False
    with scratch_file(path.parent) as scratch:
        with scratch.open("wb", buffering=0) as file:
            for at in range(0, len(data), _CHUNK):
                size = write_all(file.fileno(), data[at : at + _CHUNK])
                if progress is not None:
                    progress(size)
        return settle(scratch, path)


@contextmanager
def scratch_file(folder: Path) -> Iterator[Path]:
    """Create an empty file that no other process uses, in ``folder``; remove it at the end.

    The folder is created, too.

    Raises:
        OSError: it cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _scratch(folder, _ANYBODY, creates_folder=True) as (path, descriptor):
        os.close(descriptor)
        yield path


def settle(scratch: Path, path: Path) -> bool:
    """Rename a whole scratch file to ``path``; False if that exists.

    Raises:
        OSError: it cannot be renamed.
    """
    if os.path.lexists(path):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    except OSError:
        # A file system without hard links. Between the check and the renaming another process may
        # put the same image there; its bytes are then replaced by equal ones.
        if os.path.lexists(path):
            return False
        scratch.rename(path)
    return True


def settle_link(target: str, path: Path) -> bool:
    """Create a symbolic link to ``target`` at ``path``; False if something exists there.

    Raises:
        OSError: it cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.symlink_to(target)
    except FileExistsError:
        return False
    return True


def same_bytes(path: Path, data: memoryview) -> bool:
    """Whether the file at ``path`` holds exactly ``data``.

    Raises:
        OSError: it cannot be read.
    """
    if path.stat().st_size != len(data):
        return False
    with path.open("rb", buffering=0) as file:
        for at in range(0, len(data), _CHUNK):
            if file.read(_CHUNK) != data[at : at + _CHUNK]:
                return False
    return True


def write_all(descriptor: int, data: bytes | memoryview) -> int:
    """Write all of ``data`` and return its size.

    Raises:
        OSError: it cannot be written.
    """
    left = memoryview(data).cast("B") if len(data) else memoryview(b"")
    while left:
        left = left[os.write(descriptor, left) :]
    return len(data)


def _mode(path: str) -> int:
    """Return ``st_mode``; 0 if the file does not exist."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - Path("") is the current directory
    except FileNotFoundError:
        if not path:
            raise
        return 0


def _replace(
    path: Path,
    parts: Iterable[bytes | memoryview],
    permissions: int | None,
    *,
    is_durable: bool,
) -> int:
    # The umask applies to a new file only; a file of fewer permissions never has more meanwhile.
    with _scratch(path.parent, _ANYBODY if permissions is None else _OWNER_ONLY) as (
        scratch,
        descriptor,
    ):
        try:
            written = sum(write_all(descriptor, part) for part in parts)
            if permissions is not None:
                os.fchmod(descriptor, permissions)
            if is_durable:
                os.fsync(descriptor)  # a full disk may show only here
        finally:
            os.close(descriptor)
        scratch.replace(path)
    return written


@contextmanager
def _scratch(
    folder: Path, mode: int, *, creates_folder: bool = False
) -> Iterator[tuple[Path, int]]:
    """Create a file and open it for writing; remove it at the end if it still has its name."""
    # Named before it is created, so that an interruption in between finds what to remove.
    path = folder / f"{UNFINISHED}{os.urandom(8).hex()}"
    is_ours = True
    try:
        try:
            descriptor = os.open(path, _FLAGS, mode)
        except FileNotFoundError:
            # Another process may have removed the empty folder, having taken its last file out.
            if not creates_folder:
                raise
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, _FLAGS, mode)
        except FileExistsError:
            is_ours = False
            raise
        yield path, descriptor
    finally:
        if is_ours:
            with suppress(OSError):
                path.unlink(missing_ok=True)
