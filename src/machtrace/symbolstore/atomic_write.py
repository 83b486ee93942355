"""Writing files that appear whole or not at all, and that replace nothing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CHUNK = 1 << 20
"""Bytes written or compared at once."""

UNFINISHED = ".unfinished-"
"""What names of files begin with while they are written."""


def write_new(path: Path, data: memoryview, progress: Callable[[int], object] | None) -> bool:
    """Write ``data`` to ``path``, with its folders; False where there is a file already.

    The file is written beside its place and gets its name when it is whole, and only if no file has
    that name by then. An interruption leaves nothing.

    Raises:
        OSError: it cannot be written.
    """
    if os.path.lexists(path):
        return False
    with scratch_file(path.parent) as beside:
        with beside.open("wb", buffering=0) as file:
            for at in range(0, len(data), _CHUNK):
                write_all(file.fileno(), data[at : at + _CHUNK])
                if progress is not None:
                    progress(min(_CHUNK, len(data) - at))
        return settle(beside, path)


@contextmanager
def scratch_file(folder: Path) -> Iterator[Path]:
    """An empty file that no other process uses, in ``folder``, which is made; removed at last.

    Raises:
        OSError: it cannot be made.
    """
    path = folder / f"{UNFINISHED}{secrets.token_hex(8)}"
    try:
        _create(path)
        yield path
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def settle(scratch: Path, path: Path) -> bool:
    """Give a whole scratch file the name ``path``, unless another file has it.

    Raises:
        OSError: it cannot be done.
    """
    if os.path.lexists(path):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(scratch, path)
    except FileExistsError:
        return False
    except OSError:
        # A file system without hard links. Between the look and the renaming another process may
        # put the same image there; its bytes are then replaced by equal ones.
        if os.path.lexists(path):
            return False
        scratch.rename(path)
    return True


def settle_link(target: str, path: Path) -> bool:
    """Make a symbolic link to ``target`` at ``path``; False where there is something already.

    Raises:
        OSError: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.symlink_to(target)
    except FileExistsError:
        return False
    return True


def same_bytes(path: Path, data: memoryview) -> bool:
    """Whether the file at ``path`` holds just ``data``.

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


def _create(path: Path) -> None:
    """Make an empty file that was not there, and its folder."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        # Another process removed the empty folder, having taken its last file out.
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o666)
    os.close(descriptor)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of ``data``.

    Raises:
        OSError: it cannot be written.
    """
    while len(data):
        data = data[os.write(descriptor, data) :]
