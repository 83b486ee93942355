"""The output file of each report."""

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
"""An input, and the path of its output; None if it goes where all others go."""

_MAX_LENGTH = 150
"""Maximum bytes of a file's name without its suffix; file systems accept 255 for both."""


def tasks(
    inputs: Iterator[ReportInput], target: Path | None, suffix: str, files: Sequence[str]
) -> tuple[Iterator[Task], bool]:
    """Return each input with its output, and whether all go to one output.

    Several inputs go to one file if its name has the format's suffix, else to a folder's files.

    Args:
        inputs: the reports in ``files``.
        target: the file or folder to write to; None for standard output.
        suffix: the suffix of the format.
        files: the paths that the user gave; in a folder none of them is replaced.

    Raises:
        FileAccessError: the folder cannot be created.
        ArgumentError: it is a file, and there are several inputs.
    """
    if target is None:
        return ((report, None) for report in inputs), True
    first = list(islice(inputs, 2))
    is_folder = target.is_dir()
    if len(first) == 1 and first[0].is_named and not is_folder:
        return iter([(first[0], str(target))]), False
    if first and not is_folder and target.name.endswith(suffix):
        return ((report, None) for report in chain(first, inputs)), True
    if not first:
        return iter(()), False
    _make_folder(target)
    return _in_folder(chain(first, inputs), target, suffix, _InputFiles(target, files)), False


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


class _InputFiles:
    """The files of an output folder that are inputs, too, and must not be replaced."""

    def __init__(self, target: Path, files: Sequence[str]) -> None:
        self._files = {os.path.realpath(file) for file in files if "\0" not in file}
        self._is_all = os.path.realpath(target) in self._files

    def __contains__(self, path: Path) -> bool:
        if self._is_all:
            return path.exists()
        return os.path.realpath(path) in self._files


def _in_folder(
    inputs: Iterator[ReportInput], target: Path, suffix: str, protected: _InputFiles
) -> Iterator[Task]:
    taken: set[str] = set()
    for report in inputs:
        stem = file_stem(report.name)
        candidate = stem
        number = 1
        # Some file systems are case-insensitive.
        while candidate.casefold() in taken or target / (candidate + suffix) in protected:
            number += 1
            candidate = f"{stem}-{number}"
        taken.add(candidate.casefold())
        yield report, str(target / (candidate + suffix))


def file_stem(name: str) -> str:
    """Return a safe file name for an input, whatever its name in an archive."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].rpartition(":")[2]
    last = Path(last or "report").stem.strip(". ")
    short = os.fsencode(last.replace("\0", ""))[:_MAX_LENGTH]
    return short.decode("utf-8", "ignore").strip() or "report"
