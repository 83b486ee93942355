"""Where what becomes of each report goes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

from machtrace.errors import ArgumentError, FileAccessError
from machtrace.model.text import printable
from machtrace.reports.inputs import ReportInput

Task: TypeAlias = tuple[ReportInput, str | None]
"""A file, and the path to write to; None for standard output."""

_LONGEST = 150
"""Bytes of a file's name without its suffix; file systems take 255 with everything."""


def tasks(
    inputs: Iterator[ReportInput], target: Path | None, suffix: str, files: Sequence[str]
) -> Iterator[Task]:
    """Each input, and where what becomes of it goes: a file of one, files in a folder of several.

    Args:
        inputs: what ``files`` lead to.
        target: the file or folder to write to; None for standard output.
        suffix: of files that are written.
        files: the paths that the user gave; in a folder none of them is replaced.

    Raises:
        FileAccessError: the folder cannot be made.
        ArgumentError: it is a file, and there are several inputs.
    """
    if target is None:
        return ((one, None) for one in inputs)
    first = list(islice(inputs, 2))
    if len(first) == 1 and first[0].is_named and not target.is_dir():
        return iter([(first[0], str(target))])
    if not first:
        return iter(())
    _make_folder(target)
    return _in_folder(chain(first, inputs), target, suffix, _Kept(target, files))


def _make_folder(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ArgumentError(
            f"{target} is a file, and there are several reports", remedy="give -o a folder"
        ) from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "cannot be made").lower()
        refused = FileAccessError(printable(str(target)), reason)
        refused.remedy = "give the name of a folder that can be written to"
        raise refused from error


class _Kept:
    """The files of a folder that are read, too, and so are not written to."""

    def __init__(self, target: Path, files: Sequence[str]) -> None:
        self._files = {os.path.realpath(file) for file in files if "\0" not in file}
        self._is_all = os.path.realpath(target) in self._files

    def __contains__(self, path: Path) -> bool:
        if self._is_all:
            return path.exists()
        return os.path.realpath(path) in self._files


def _in_folder(
    inputs: Iterator[ReportInput], target: Path, suffix: str, kept: _Kept
) -> Iterator[Task]:
    taken: set[str] = set()
    for one in inputs:
        stem = file_stem(one.name)
        candidate = stem
        number = 1
        # Some file systems take capital letters for small ones.
        while candidate.casefold() in taken or target / (candidate + suffix) in kept:
            number += 1
            candidate = f"{stem}-{number}"
        taken.add(candidate.casefold())
        yield one, str(target / (candidate + suffix))


def file_stem(name: str) -> str:
    """Return a safe file name for an input, whatever its name in an archive."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].rpartition(":")[2]
    last = Path(last or "report").stem.strip(". ")
    short = os.fsencode(last.replace("\0", ""))[:_LONGEST]
    return short.decode("utf-8", "ignore").strip() or "report"
