"""Bringing a device's crash reports into a folder of this machine.

The device says what its files are called, and is not trusted with that: a name that would lead out
of the folder is refused. A file that is there already stays as it is. Each file appears whole or
not at all.
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

_LONGEST_NAME = 255
"""Bytes of one name, as file systems have it."""
_RESERVED = frozenset({"con", "prn", "aux", "nul"}) | {
    f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)
}
"""Names that are devices on Windows, whatever follows a dot in them."""
_GROWTH = 1 << 20
"""Bytes that a report may have more than the device said: some are being written."""
_LARGEST = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportChoice:
    """Which reports are wanted."""

    name: str | None = None
    """What a file's name begins with, or with ``*`` and ``?`` all of it; case does not matter."""
    newer_than: float | None = None
    """Seconds since 1970."""

    def has(self, file: DeviceFile) -> bool:
        """Whether ``file`` is one."""
        if self.newer_than is not None and file.modified <= self.newer_than:
            return False
        if self.name is None:
            return True
        wanted, name = self.name.lower(), file.path.rpartition("/")[2].lower()
        if "*" in wanted or "?" in wanted:
            return fnmatchcase(name, wanted.replace("[", "[[]"))
        return name.startswith(wanted)


class PullProgress(Protocol):
    """Is told what happens."""

    def look_at(self, file: DeviceFile, /) -> None:
        """It is the turn of ``file``."""
        ...

    def advance(self, size: int, /) -> None:
        """``size`` more bytes came, or need not come."""
        ...


@dataclass(slots=True)
class PulledReports:
    """What became of the reports that were wanted."""

    written: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    """Files that were there already, and stayed as they were."""
    problems: list[MachtraceError] = field(default_factory=list)
    """One for each that could not be had."""


def chosen_reports(
    session: DeviceSession, choice: ReportChoice, seen: Callable[[int], object] | None = None
) -> list[DeviceFile]:
    """The reports of a device that are wanted, the newest first.

    Args:
        session: with the device.
        choice: which.
        seen: told how many files there are so far, wanted or not.

    Raises:
        DeviceError, ConnectionLostError: the device does not tell.
    """
    found: list[DeviceFile] = []
    for count, file in enumerate(session.report_files(), 1):
        if seen is not None:
            seen(count)
        if choice.has(file):
            found.append(file)
    return sorted(found, key=lambda file: (-file.modified, file.path))


def pull_reports(
    session: DeviceSession, files: list[DeviceFile], folder: Path, progress: PullProgress
) -> PulledReports:
    """Copy ``files`` of a device into ``folder``, which is made if need be, by their paths there.

    Where one cannot be had the others are. If the connection breaks, what is whole stays.

    Raises:
        FileAccessError: the folder cannot be written to.
    """
    result = PulledReports()
    for file in files:
        progress.look_at(file)
        try:
            place = folder.joinpath(*safe_parts(file, session.device.udid))
            _check_inside(folder, place, file, session.device.udid)
            is_new = not os.path.lexists(place) and _copy(session, file, folder, place, progress)
        except ConnectionLostError as error:
            result.problems.append(error)
            break
        except DeviceError as error:
            result.problems.append(error)
            continue
        except OSError as error:
            raise FileAccessError(str(folder), error.strerror or "cannot be written") from error
        (result.written if is_new else result.kept).append(place)
        if not is_new:
            progress.advance(file.size)
    return result


def safe_parts(file: DeviceFile, udid: str) -> tuple[str, ...]:
    """The folders and the name of ``file``, from the folder of reports, as nothing but names.

    Raises:
        DeviceError: one would mean something else here, such as the folder above.
    """
    parts = tuple(file.path.removeprefix("/").split("/"))
    if all(map(_is_plain, parts)):
        return parts
    raise DeviceError(
        f"device {udid} has a report with a name that is refused: {file.path!r}",
        udid=udid,
        remedy="look at the device: no report of Apple's has such a name",
    )


def _is_plain(name: str) -> bool:
    return (
        name.strip(". ") != ""
        and name.isprintable()
        and not set(name) & {"\\", ":"}
        and not name.endswith((".", " "))
        and name.partition(".")[0].rstrip().lower() not in _RESERVED
        and len(name.encode("utf-8", "surrogateescape")) <= _LONGEST_NAME
    )


def _check_inside(folder: Path, place: Path, file: DeviceFile, udid: str) -> None:
    """Follow no link in the folder that leads out of it."""
    if place.parent.resolve().is_relative_to(folder.resolve()):
        return
    raise DeviceError(
        f"the report {file.path} of device {udid} would be written outside of {folder}",
        udid=udid,
        remedy="give a folder without symbolic links in it",
    )


def _copy(
    session: DeviceSession, file: DeviceFile, folder: Path, place: Path, progress: PullProgress
) -> bool:
    """Whether it was copied, and not there by then."""
    with scratch_file(folder) as beside:
        with beside.open("wb", buffering=0) as sink:
            for data in _bounded(session, file):
                write_all(sink.fileno(), memoryview(data))
                progress.advance(len(data))
        with suppress(OSError, OverflowError, ValueError):
            os.utime(beside, (file.modified, file.modified))
        return settle(beside, place)


def _bounded(session: DeviceSession, file: DeviceFile) -> Iterator[bytes]:
    udid = session.device.udid
    if not 0 <= file.size <= _LARGEST:
        raise DeviceError(f"device {udid} has {file.path} of {file.size} bytes", udid=udid)
    left = file.size + _GROWTH
    for data in session.read_report(file.path):
        left -= len(data)
        if left < 0:
            raise DeviceError(
                f"there is no end to {file.path} of device {udid}: it has {file.size} bytes",
                udid=udid,
                remedy="try again when the device does not write it any more",
            )
        yield data
