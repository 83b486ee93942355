"""The folders of what does not fit into the memory of queries, in the warehouse.

DuckDB makes the folder of a connection when it needs it, and removes it. Each connection has its
own one, since DuckDB's files have the same names in all processes. It is named after the process,
so that what a killed one left is found.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from secrets import token_hex

from machtrace.warehouse.sql import Resources

_OWN, _SERVED = "tmp-", "tmp-server-"
"""The beginnings of names."""


def own_resources(folder: Path, memory: str = Resources().memory) -> Resources:
    """Return the limits of a connection of this process.

    Args:
        folder: the warehouse. If it cannot be written, spills are among the system's temporary
            files.
        memory: as DuckDB writes sizes.
    """
    _remove_dead(folder)
    is_writable = os.access(folder, os.W_OK)
    root = folder.resolve() if is_writable else Path(tempfile.gettempdir())
    return Resources(memory, _named(root, _OWN))


def served_resources(folder: Path, memory: int, spill: int) -> Resources:
    """Return the limits of a connection of a server's process.

    Args:
        folder: the warehouse.
        memory: in bytes.
        spill: bytes on the disk.
    """
    return Resources(f"{memory}B", _named(folder.resolve(), _SERVED), spill)


def remove_spills(folder: Path, process: int | None = None) -> None:
    """Remove what processes of a server left.

    Args:
        folder: the warehouse.
        process: the one that ended; None: all, when the server starts or has ended.
    """
    for path in folder.glob(f"{_SERVED}*" if process is None else f"{_SERVED}{process}-*"):
        shutil.rmtree(path, ignore_errors=True)
    if process is None:
        _remove_dead(folder)


def _named(root: Path, head: str) -> Path:
    return root / f"{head}{os.getpid()}-{token_hex(4)}"


def _remove_dead(folder: Path) -> None:
    """Remove what processes that do not exist any more have left."""
    for path in folder.glob(f"{_OWN}*"):
        process, _, _ = path.name.removeprefix(_OWN).partition("-")
        if process.isdecimal() and not _exists(int(process)):
            shutil.rmtree(path, ignore_errors=True)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
