"""Copying a device's crash reports into a folder of this machine.

The device's file names are not trusted: a name that leads out of the folder is refused. An existing
file is never replaced. Each file appears completely or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from machtrace.atomic_write import scratch_file, settle, write_all
from machtrace.errors import ConnectionLostError, DeviceError, FileAccessError, MachtraceError
from machtrace.frozen import dataclass
from machtrace.targets.ios.access import DeviceFile, DeviceSession

_MAX_NAME_LENGTH = 255
"""Maximum bytes of a file name on common file systems."""
_RESERVED = frozenset({"con", "prn", "aux", "nul"}) | {
    f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)
}
"""Names of devices on Windows, with any suffix."""
_GROWTH = 1 << 20
"""Bytes that a report may exceed its listed size by: some are being written."""
_MAX_VALUE = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportChoice:
    """A selection of reports."""

    name: str | None = None
    """A prefix of the file's name, or a pattern with ``*`` and ``?``; case-insensitive."""
    newer_than: float | None = None
    """Seconds since 1970; only newer reports."""

    def has(self, file: DeviceFile) -> bool:
        """Return whether ``file`` is selected."""
        if self.newer_than is not None and file.modified <= self.newer_than:
            return False
        if self.name is None:
            return True
        wanted, name = self.name.lower(), file.path.rpartition("/")[2].lower()
        if "*" in wanted or "?" in wanted:
            return fnmatchcase(name, wanted.replace("[", "[[]"))
        return name.startswith(wanted)


class PullProgress(Protocol):
    """Receives the progress of copying."""

    def begin(self, file: DeviceFile, /) -> None:
        """Report that ``file`` is next."""
        ...

    def advance(self, size: int, /) -> None:
        """Report that ``size`` more bytes were copied or skipped."""
        ...


@dataclass(slots=True)
class PulledReports:
    """The outcome for the selected reports."""

    written: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    """Files that existed, and were not replaced."""
    problems: list[MachtraceError] = field(default_factory=list)
    """One error for each report that could not be copied."""


def chosen_reports(
    session: DeviceSession, choice: ReportChoice, seen: Callable[[int], object] | None = None
) -> list[DeviceFile]:
    """Return the selected reports of a device, newest first.

    Args:
        session: the connection to the device.
        choice: the selection.
        seen: called with the number of files listed so far, selected or not.

    Raises:
        DeviceError, ConnectionLostError: the device does not list its reports.
    """
    files: list[DeviceFile] = []
    for count, file in enumerate(session.report_files(), 1):
        if seen is not None:
            seen(count)
        if choice.has(file):
            files.append(file)
    return sorted(files, key=lambda file: (-file.modified, file.path))


def pull_reports(
    session: DeviceSession, files: list[DeviceFile], folder: Path, progress: PullProgress
) -> PulledReports:
    """Copy ``files`` of a device into ``folder``, by their paths on the device.

    The folder is created if it does not exist. If a report cannot be copied, the others are. If the
    connection breaks, the complete files stay.

    Raises:
        FileAccessError: the folder cannot be written to.
    """
    result = PulledReports()
    for file in files:
        progress.begin(file)
        try:
            path = folder.joinpath(*safe_parts(file, session.device.udid))
            _check_inside(folder, path, file, session.device.udid)
            is_new = not os.path.lexists(path) and _copy(session, file, folder, path, progress)
        except ConnectionLostError as error:
            result.problems.append(error)
            break
        except DeviceError as error:
            result.problems.append(error)
            continue
        except OSError as error:
            raise FileAccessError(str(folder), error.strerror or "cannot be written") from error
        (result.written if is_new else result.kept).append(path)
        if not is_new:
            progress.advance(file.size)
    return result


def safe_parts(file: DeviceFile, udid: str) -> tuple[str, ...]:
    """Return the folders and the name of ``file``, relative to the folder of reports.

    Raises:
        DeviceError: a part is special on this machine, such as ``..``.
    """
    parts = tuple(file.path.removeprefix("/").split("/"))
    if all(map(_is_plain, parts)):
        return parts
    raise DeviceError(
        f"device {udid} has a report with a name that is refused: {file.path!r}",
        udid=udid,
        remedy="inspect the device: Apple's reports do not have such names",
    )


def _is_plain(name: str) -> bool:
    return (
        name.strip(". ") != ""
        and name.isprintable()
        and not set(name) & {"\\", ":"}
        and not name.endswith((".", " "))
        and name.partition(".")[0].rstrip().lower() not in _RESERVED
        and len(name.encode("utf-8", "surrogateescape")) <= _MAX_NAME_LENGTH
    )


def _check_inside(folder: Path, path: Path, file: DeviceFile, udid: str) -> None:
    """Check that no link in the folder leads out of it."""
    if path.parent.resolve().is_relative_to(folder.resolve()):
        return
    raise DeviceError(
        f"the report {file.path} of device {udid} would be written outside of {folder}",
        udid=udid,
        remedy="pass a folder without symbolic links in it",
    )


def _copy(
    session: DeviceSession, file: DeviceFile, folder: Path, path: Path, progress: PullProgress
) -> bool:
    """Return whether the file was copied; False if it exists by then."""
    with scratch_file(folder) as beside:
        with beside.open("wb", buffering=0) as sink:
            for data in _bounded(session, file):
                write_all(sink.fileno(), memoryview(data))
                progress.advance(len(data))
        with suppress(OSError, OverflowError, ValueError):
            os.utime(beside, (file.modified, file.modified))
        return settle(beside, path)


def _bounded(session: DeviceSession, file: DeviceFile) -> Iterator[bytes]:
    udid = session.device.udid
    if not 0 <= file.size <= _MAX_VALUE:
        raise DeviceError(f"device {udid} has {file.path} of {file.size} bytes", udid=udid)
    left = file.size + _GROWTH
    for data in session.read_report(file.path):
        left -= len(data)
        if left < 0:
            raise DeviceError(
                f"{file.path} of device {udid} is longer than its {file.size} bytes",
                udid=udid,
                remedy="try again when the device has finished writing it",
            )
        yield data
