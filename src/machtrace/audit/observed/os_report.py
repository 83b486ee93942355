"""Apple's App Privacy Report: which data the system saw an app get, and the hosts it contacted.

Source of the form: developer.apple.com, *Inspecting App Activity Data* (iOS 15.2): NDJSON with
objects of the types ``access`` and ``networkActivity``. Reports of iOS 15.0 (*Record App Activity*)
have a ``stream`` and a ``tccService`` instead. A line that is none of these is counted with its
reason. One line is in memory at a time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from machtrace.errors import FileAccessError, FormatError
from machtrace.frozen import dataclass

_MAX_BYTES = 1 << 30
"""Bytes of a file."""
_MAX_LENGTH = 1 << 20
"""Bytes of a line."""
_MAX_REASONS = 20
_MAX_TEXT_LENGTH = 255
"""Letters of a domain name (RFC 1035), and of all other texts."""
_EPOCH, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_STREAM = "com.apple.privacy.accounting.stream."
_TRACKER = 1
"""``domainType`` of hosts that may track; 2 of others."""
_SERVICES = {
    "kTCCServiceAddressBook": "contacts",
    "kTCCServiceContactsFull": "contacts",
    "kTCCServiceContactsLimited": "contacts",
    "kTCCServiceCamera": "camera",
    "kTCCServiceLocation": "location",
    "kTCCServiceMediaLibrary": "mediaLibrary",
    "kTCCServiceMicrophone": "microphone",
    "kTCCServicePhotos": "photos",
    "kTCCServicePhotosAdd": "photos",
    "kTCCServiceScreenCapture": "screenRecording",
}


class Access(NamedTuple):
    """Data that an app got for a time. Times are in ns since 1970; None: not in the report."""

    app: str
    """The bundle identifier."""
    category: str
    """``camera``, ``contacts``, ``location`` and the like."""
    begin: int | None
    end: int | None


class Host(NamedTuple):
    """A host that an app contacted."""

    app: str
    domain: str
    hits: int
    is_tracker: bool
    """Whether the system lists it as one that may track."""
    owner: str
    """Who the domain belongs to; empty if it is unknown."""
    is_of_app: bool
    """Whether the app itself contacted it, rather than a web site in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OsReport:
    """The lines of a report."""

    accesses: tuple[Access, ...]
    hosts: tuple[Host, ...]
    skipped: Mapping[str, int]
    """By reason: lines that are neither an access nor a host."""

    @property
    def apps(self) -> tuple[str, ...]:
        """The apps with accesses or hosts."""
        apps = {access.app for access in self.accesses} | {host.app for host in self.hosts}
        return tuple(sorted(apps))


def read_os_report(path: Path) -> OsReport:
    """Read an App Privacy Report.

    Raises:
        FileAccessError: the file cannot be read.
        FormatError: it has no line of such a report, or is larger than 1 GiB.
    """
    try:
        with path.open("rb") as file:
            return _parsed(file, str(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileAccessError(str(path), f"cannot read the App Privacy Report: {reason}") from None


def parse_os_report(data: bytes, source: str) -> OsReport:
    """Parse an App Privacy Report of either form.

    Raises:
        FormatError: no line is one of such a report, or it is larger than 1 GiB.
    """
    return _parsed(BytesIO(data), source)


def _parsed(file: BinaryIO, source: str) -> OsReport:
    parser = _Parser()
    size, is_inside = 0, False
    while line := file.readline(_MAX_LENGTH):
        size += len(line)
        if size > _MAX_BYTES:
            raise FormatError(
                f"the App Privacy Report is larger than {_MAX_BYTES} bytes",
                source=source,
                offset=_MAX_BYTES,
                remedy="pass the file that the device exported",
            )
        is_whole = len(line) < _MAX_LENGTH or line.endswith(b"\n")
        if is_inside:
            is_inside = not is_whole
        elif not is_whole:
            parser.skip("longer than 1 MiB")
            is_inside = True
        elif line.strip():
            parser.add(line)
    report = parser.report()
    if not report.apps:
        raise FormatError(
            "not an App Privacy Report: it has neither accesses nor network activity",
            source=source,
            offset=0,
            remedy="export it on the device: Settings, Privacy, App Privacy Report, Share",
        )
    return report


class _Parser:
    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str], int] = {}
        """Rows of accesses whose begin or end is missing, by app, category and identifier."""
        self._accesses: list[Access] = []
        self._hosts: list[Host] = []
        self._skipped = Counter[str]()

    def skip(self, reason: str) -> None:
        is_known = reason in self._skipped or len(self._skipped) < _MAX_REASONS
        self._skipped[reason if is_known else "other reasons"] += 1

    def add(self, line: bytes) -> None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            self.skip("no JSON object")
            return
        try:
            reason = self._add(row)
        except ValueError as error:
            reason = str(error)
        if reason:
            self.skip(reason)

    def report(self) -> OsReport:
        return OsReport(
            accesses=tuple(self._accesses),
            hosts=tuple(self._hosts),
            skipped=dict(sorted(self._skipped.items())),
        )

    def _add(self, row: dict[str, Any]) -> str:
        """Add a line; return why it is left out, or nothing."""
        kind, stream = row.get("type"), row.get("stream")
        if kind == "networkActivity":
            self._hosts.append(_host(row))
            return ""
        is_earlier = isinstance(stream, str) and stream.startswith(_STREAM)
        if kind != "access" and not is_earlier:
            return f"the type {_shown(str(kind))!r} is unknown"
        accessor = row["accessor"] if isinstance(row.get("accessor"), dict) else {}
        app = accessor.get("identifier") or row.get("bundleID")
        if not app:
            return "no app is named"
        category = _category(row) if is_earlier else row.get("category")
        if is_earlier and category is None:
            return f"the service {_shown(str(row.get('tccService')))!r} is unknown"
        time = _time(row.get("timeStamp", row.get("timestamp")))
        self._add_access(
            Access(_text(app, "accessor"), _text(category, "category"), time, time),
            str(row.get("identifier") or ""),
            str(row.get("kind")),
        )
        return ""

    def _add_access(self, event: Access, identifier: str, kind: str) -> None:
        """Add a begin, an end or an event; a begin and an end may be in either order."""
        match kind:
            case "intervalBegin":
                access = event._replace(end=None)
            case "intervalEnd":
                access = event._replace(begin=None)
            case "event":
                self._accesses.append(event)
                return
            case _:
                raise ValueError(f"the kind {_shown(kind)!r} is unknown")
        key = event.app, event.category, identifier
        number = self._open.get(key)
        joined = None if number is None else _joined(self._accesses[number], access)
        if number is not None and joined is not None:
            self._accesses[number] = joined
            del self._open[key]
            return
        if identifier:
            self._open[key] = len(self._accesses)
        self._accesses.append(access)


def _joined(one: Access, other: Access) -> Access | None:
    """Return the interval of a begin and an end; None if they are not of one interval."""
    begin, end = (one, other) if one.end is None else (other, one)
    if begin.begin is None or end.end is None or begin.begin > end.end:
        return None
    return begin._replace(end=end.end)


def _category(row: dict[str, Any]) -> str | None:
    stream = str(row["stream"]).removeprefix(_STREAM)
    if stream == "tcc":
        return _SERVICES.get(str(row.get("tccService")))
    return stream


def _host(row: dict[str, Any]) -> Host:
    hits = row.get("hits", 0)
    return Host(
        app=_text(row.get("bundleID"), "bundleID"),
        domain=_text(row.get("domain"), "domain").rstrip(".").lower(),
        hits=hits if isinstance(hits, int) else 0,
        is_tracker=row.get("domainType") == _TRACKER,
        owner=_text(row["domainOwner"], "domainOwner") if row.get("domainOwner") else "",
        is_of_app=row.get("initiatedType") != "NonAppInitiated",
    )


def _text(value: object, key: str) -> str:
    """Return a text that can be printed."""
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= _MAX_TEXT_LENGTH
        or not value.isprintable()
    ):
        raise ValueError(f"{key} is no text, or is too long")
    return value


def _shown(text: str) -> str:
    """Return a part of a text from the file, for a reason."""
    return "".join(each if each.isprintable() else "?" for each in text[:40])


def _time(text: object) -> int:
    """Return ns since 1970 of a time with its zone."""
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError("its time is no date and time with a zone")
    if not _EPOCH <= time < _LATEST:
        raise ValueError("its time is before 1970 or after 2200")
    return (time - _EPOCH) // _MICROSECOND * 1000


def accesses_of(report: OsReport, app: str) -> Iterator[Access]:
    """Yield the accesses of an app."""
    return (access for access in report.accesses if access.app == app)
