"""Writing a file so that its name leads to all of it, or to what was there before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from machtrace.errors import FileAccessError

_OWNER_ONLY = 0o600
_CLOSED = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
"""Not for programs that are started; and on Windows with no line ends of its own."""


def replace_file(path: str, parts: Iterable[bytes | memoryview]) -> int:
    """Write ``parts`` to ``path``; gives the number of bytes.

    They go to a new file beside it, for its owner's eyes only, which takes the name once all of
    it is on the disk. A symbolic link is followed. What is no file, such as a pipe or a terminal,
    is written to as it is.

    Raises:
        FileAccessError: the file cannot be written; whatever had the name has it still.
    """
    try:
        mode = _mode(path)
        if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            with Path(path).open("wb", buffering=0) as sink:
                return sum(_write(sink.fileno(), part) for part in parts)
        # Of a directory it says that it is one.
        return _replace(Path(os.path.realpath(path)), parts)
    except (OSError, ValueError) as error:
        # ValueError: a NUL in the path.
        reason = getattr(error, "strerror", None) or str(error)
        refused = FileAccessError(path, reason[:1].lower() + reason[1:])
        refused.remedy = "give the name of a file in a folder that can be written to and has room"
        raise refused from error


def _mode(path: str) -> int:
    """``st_mode``; 0 where there is nothing of this name."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - Path("") is the current directory
    except FileNotFoundError:
        if not path:
            raise
        return 0


def _replace(path: Path, parts: Iterable[bytes | memoryview]) -> int:
    # Named here and not by whoever makes it: what interrupts that, too, finds what to take away.
    beside = path.with_name(f".{path.name[:100]}.{os.urandom(8).hex()}")
    try:
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CLOSED, _OWNER_ONLY)
        try:
            written = sum(_write(descriptor, part) for part in parts)
            os.fchmod(descriptor, _OWNER_ONLY)
            # A full disk may show only here.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(path)
    except FileExistsError:
        raise  # it belongs to another process
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return written


def _write(descriptor: int, part: bytes | memoryview) -> int:
    left = memoryview(part).cast("B") if len(part) else memoryview(b"")
    while left:
        left = left[os.write(descriptor, left) :]
    return len(part)
