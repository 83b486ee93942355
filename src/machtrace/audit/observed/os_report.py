"""Apple's App Privacy Report: which data the system saw an app get, and the hosts it contacted.

Source of the form: developer.apple.com, *Inspecting App Activity Data* (iOS 15.2): NDJSON with
objects of the types ``access`` and ``networkActivity``. Reports of iOS 15.0 (*Record App Activity*)
have a ``stream`` and a ``tccService`` instead. A line that is none of these is counted with its
reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from machtrace.errors import FileAccessError, FormatError
from machtrace.frozen import dataclass

_LARGEST = 1 << 28
"""Bytes of a file."""
_LONGEST = 1 << 20
"""Bytes of a line."""
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
        apps = {each.app for each in self.accesses} | {each.app for each in self.hosts}
        return tuple(sorted(apps))


def read_os_report(path: Path) -> OsReport:
    """Read an App Privacy Report.

    Raises:
        FileAccessError: the file cannot be read.
        FormatError: it has no line of such a report.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileAccessError(str(path), f"cannot read the App Privacy Report: {reason}") from None
    return parse_os_report(data[:_LARGEST], str(path))


def parse_os_report(data: bytes, source: str) -> OsReport:
    """Parse an App Privacy Report of either form.

    Raises:
        FormatError: no line is one of such a report.
    """
    parser = _Parser()
    for line in data.splitlines():
        if line.strip():
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
        """Rows of accesses that have begun, by app, category and identifier."""
        self._accesses: list[Access] = []
        self._hosts: list[Host] = []
        self._skipped = Counter[str]()

    def add(self, line: bytes) -> None:
        try:
            row = json.loads(line) if len(line) <= _LONGEST else None
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            self._skipped["no JSON object"] += 1
            return
        try:
            reason = self._add(row)
        except (TypeError, ValueError, OverflowError) as error:
            reason = f"a value is invalid: {error}"[:80]
        if reason:
            self._skipped[reason] += 1

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
            return f"the type {str(kind)[:40]!r} is unknown"
        accessor = row["accessor"] if isinstance(row.get("accessor"), dict) else {}
        app = str(accessor.get("identifier") or row.get("bundleID") or "")
        if not app:
            return "no app is named"
        category = _category(row) if is_earlier else row.get("category")
        if not isinstance(category, str):
            return f"the service {str(row.get('tccService'))[:40]!r} is unknown"
        time = _time(row.get("timeStamp", row.get("timestamp")))
        self._add_access(app, category, str(row.get("identifier", "")), str(row.get("kind")), time)
        return ""

    def _add_access(self, app: str, category: str, identifier: str, kind: str, time: int) -> None:
        key = app, category, identifier
        match kind:
            case "intervalBegin":
                self._open[key] = len(self._accesses)
                self._accesses.append(Access(app, category, time, None))
            case "intervalEnd" if key in self._open:
                number = self._open.pop(key)
                self._accesses[number] = self._accesses[number]._replace(end=time)
            case "intervalEnd":
                self._accesses.append(Access(app, category, None, time))
            case "event":
                self._accesses.append(Access(app, category, time, time))
            case _:
                raise ValueError(f"kind {kind[:40]!r}")


def _category(row: dict[str, Any]) -> str | None:
    stream = str(row["stream"]).removeprefix(_STREAM)
    if stream == "tcc":
        return _SERVICES.get(str(row.get("tccService")))
    return stream


def _host(row: dict[str, Any]) -> Host:
    hits = row.get("hits", 0)
    return Host(
        app=str(row["bundleID"]) if row.get("bundleID") else _missing("bundleID"),
        domain=str(row["domain"]) if row.get("domain") else _missing("domain"),
        hits=hits if isinstance(hits, int) else 0,
        is_tracker=row.get("domainType") == _TRACKER,
        owner=str(row.get("domainOwner") or ""),
        is_of_app=row.get("initiatedType") != "NonAppInitiated",
    )


def _missing(key: str) -> str:
    raise ValueError(f"no {key}")


def _time(text: object) -> int:
    """Return ns since 1970 of a time with its zone."""
    if not isinstance(text, str):
        raise ValueError("no time")  # noqa: TRY004 - of the file, not of a caller
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a time without a zone")
    return round(time.timestamp() * 1_000_000) * 1000


def accesses_of(report: OsReport, app: str) -> Iterator[Access]:
    """Yield the accesses of an app."""
    return (access for access in report.accesses if access.app == app)
