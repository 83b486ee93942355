"""The files that paths lead to: themselves, what is in folders, and what is packed in them.

Packed are gzip files and zip archives (:mod:`~machtrace.reports.packed_inputs`), within limits of
size, number and depth. One file is read at a time, when it is asked for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from machtrace.errors import FileAccessError, MachtraceError
from machtrace.reports.packed_inputs import InputLimits, ReportInput, read_within, unpacked
from machtrace.render.printable import printable

__all__ = ["InputLimits", "ReportInput", "count_files", "report_inputs"]


def report_inputs(
    path: str | Path, limits: InputLimits | None = None, *, without: Path | None = None
) -> Iterator[ReportInput]:
    """What ``path`` leads to, files of folders in the order of their names. Raises nothing.

    Args:
        path: a file or a folder.
        limits: how much is read.
        without: a folder in that folder which is passed over: what is written goes there.
    """
    limits = limits or InputLimits()
    for one, is_named in _files(Path(path), without):
        if isinstance(one, FileAccessError):
            yield ReportInput(one.path, one, is_named)
            continue
        name = printable(str(one))
        try:
            data = _read(one, limits, is_named=is_named)
        except MachtraceError as error:
            yield ReportInput(name, error, is_named)
            continue
        yield from unpacked(name, data, limits, is_named=is_named)


def count_files(path: str | Path, *, without: Path | None = None) -> int:
    """How many files :func:`report_inputs` reads, archives counted as one."""
    return sum(1 for _ in _files(Path(path), without))


def _files(path: Path, without: Path | None) -> Iterator[tuple[Path | FileAccessError, bool]]:
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        is_folder = False
    if not is_folder:
        yield path, True
        return
    unread: list[OSError] = []
    left_out = None if without is None else os.path.realpath(without)
    for folder, folders, names in os.walk(path, onerror=unread.append):
        folders[:] = sorted(
            one for one in folders if os.path.realpath(Path(folder, one)) != left_out
        )
        for name in sorted(names):
            yield Path(folder, name), False
    for error in unread:
        yield FileAccessError(printable(str(error.filename)), _reason(error)), False


def _read(path: Path, limits: InputLimits, *, is_named: bool) -> bytes:
    name = printable(str(path))
    try:
        mode = path.stat().st_mode
        # Nobody may ever write to a pipe that only happens to be in a folder.
        if not stat.S_ISREG(mode) and not (is_named and stat.S_ISFIFO(mode)):
            raise FileAccessError(name, "not a file that can be read")
        with path.open("rb") as file:
            data = read_within(file, limits.file_bytes)
    except (OSError, ValueError) as error:
        if isinstance(error, MachtraceError):
            raise
        raise FileAccessError(name, _reason(error)) from error
    if len(data) > limits.file_bytes:
        raise FileAccessError(name, f"larger than {limits.file_bytes} bytes")
    return data


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or "cannot be read").lower()
