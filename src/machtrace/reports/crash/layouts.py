"""The layouts of Apple's crash text: labels, their order and widths.

Report version 104 is written by iOS and its relatives, 12 by macOS up to 15; since macOS 26 texts
have no version. They differ in labels, columns, order, and in the spelling of threads, terminations
and images. Sources: Apple, *Examining the fields in a crash report*; reports of iOS 10 to 26 and of
macOS 10.9 to 26, for macOS 26 also the keys of the .ips files that its texts are made from.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from machtrace.model.report import Report, ReportKind

_MAC_NAMES = ("macOS", "Mac OS X", "OS X")
_MAC_VERSION = re.compile(r"macOS (?P<major>[0-9]{1,3})\b")
_FIRST_WITHOUT_VERSION = 26
_IOS_VERSION = "104"
_MAC_PLATFORM = 1
_SIMULATORS = frozenset({7, 8, 9, 12})
"""Platforms of ``mach-o/loader.h``: iOS, tvOS, watchOS and visionOS simulators. Their reports name
the host's macOS.
"""
_UPTIME = "uptime"
"""In texts of macOS 26, which show no report version, even for reports of iOS."""


class Layout(Enum):
    """A layout."""

    IOS = "104"
    SIMULATOR = "104 of a simulator"
    """Labels of iOS; threads and images as on macOS, the host."""
    MACOS = "12"
    MACOS_26 = "macOS 26"


def is_of_mac(report: Report) -> bool:
    """Return whether the report is from macOS."""
    if report.system.os_name is not None:
        return report.system.os_name.startswith(_MAC_NAMES)
    return report.incident.details.get("platform") == _MAC_PLATFORM


def layout_of(report: Report) -> Layout:
    """Return the report's layout: the one it was read in, else its system's."""
    version = report.incident.report_version
    if report.kind is ReportKind.APPLE_CRASH:
        if version is None:
            is_new = is_of_mac(report) or _UPTIME in report.details
            return Layout.MACOS_26 if is_new else Layout.IOS
        if version != _IOS_VERSION:
            return Layout.MACOS
        return Layout.SIMULATOR if is_of_mac(report) else Layout.IOS
    if not is_of_mac(report):
        return Layout.IOS
    match = _MAC_VERSION.match(report.system.os_name or "")
    is_new = match is not None and int(match["major"]) >= _FIRST_WITHOUT_VERSION
    if is_new:
        return Layout.MACOS_26
    platform = report.incident.details.get("platform")
    is_simulated = type(platform) is int and platform in _SIMULATORS
    return Layout.SIMULATOR if is_simulated else Layout.MACOS


class Row(NamedTuple):
    """A label with its lines, or a position for empty lines."""

    label: str
    """As in the text, without its colon; empty for empty lines."""
    width: int = 0
    """Columns of the label with its colon; the value follows after at least one space."""
    is_always: bool = False
    """Whether an empty line is written even after another one."""
    after: int = 0
    """Empty lines that follow the label, if it is present."""


BLANK = Row("", is_always=True)
GAP = Row("")
BACKTRACE = "Application Specific Backtrace"
"""The label of several numbered sections."""
LAST_EXCEPTION = "Last Exception Backtrace"
THREADS = "Threads"
STATE = "Thread State"
IMAGES = "Binary Images"
"""This and the three before it are parts of the text without labels."""
CALL_GRAPH = "Call Graph"
OTHERS = "Other Processes"
AFTER = "after "
"""Prefix of the name for lines that follow an empty line without a label: then the label before."""


def _rows(width: int, *labels: str) -> tuple[Row, ...]:
    return tuple(Row(label, width) for label in labels)


_IDENTITY = ("Process", "Path", "Identifier", "Version", "Build Info")
_STORE = ("AppStoreTools", "AppVariant", "Beta", "App Item ID", "App External ID")
_PLUGIN = ("PlugIn Path", "PlugIn Identifier", "PlugIn Version")
_AWAKE = ("Time Awake Since Boot", "Time Since Wake")
_EXCEPTION = (
    *("Exception Type", "Exception Subtype", "Exception Message", "Exception Codes"),
    *("Exception Reason", "VM Region Info", "Exception Note"),
)
_TERMINATION = (
    *("Termination Signal", "Termination Reason", "Termination Description"),
    "Terminating Process",
)
_REGION = "VM Region Info"
_IOS: tuple[Row, ...] = (
    BLANK,
    *_rows(21, "Incident Identifier", "Distributor ID", "CrashReporter Key", "Beta Identifier"),
    *_rows(21, "UDID", "Hardware Model", "Device Model", *_IDENTITY, *_STORE),
    *_rows(21, "Code Type", "Role", "Parent Process", "Coalition", "Responsible Process"),
    *(BLANK, *_rows(21, *_PLUGIN), GAP),
    *_rows(21, "Date/Time", "Launch Time", "OS Version", "Release Type", "Bridge OS Version"),
    *_rows(21, "Baseband Version", "Report Version", "Incident Kind"),
    *(BLANK, *_rows(17, *_EXCEPTION), *_rows(0, *_TERMINATION), BLANK),
    *(*_rows(22, "Triggered by Thread", "Crashed Thread", "Highlighted by Thread"), GAP),
    *(Row("Dyld Error Message"), GAP),
    *(Row("Application Specific Information"), GAP, Row("Application Specific Signatures"), GAP),
    *(Row(BACKTRACE), GAP, Row("Kernel Triage"), GAP, Row(LAST_EXCEPTION), GAP),
    *(BLANK, Row(THREADS), BLANK, Row(STATE), GAP, Row(CALL_GRAPH), GAP, Row(OTHERS), GAP),
    *(Row(IMAGES), BLANK, Row("EOF"), BLANK),
)
_SIMULATOR = tuple(
    row
    for place, row in enumerate(_IOS)
    if not (row is BLANK and _IOS[place + 1 : place + 2] == (Row(THREADS),))
)
_MACOS: tuple[Row, ...] = (
    *(BLANK, *_rows(23, *_IDENTITY, "App Item ID", "App External ID", "Code Type")),
    *(*_rows(23, "Parent Process", "Responsible", "User ID"), BLANK),
    *(*_rows(23, *_PLUGIN), GAP),
    *_rows(23, "Date/Time", "OS Version", "Report Version", "Bridge OS Version", "Anonymous UUID"),
    *_rows(23, "Incident Kind"),
    *(BLANK, Row("Sleep/Wake UUID", 23), BLANK, *_rows(23, *_AWAKE), GAP),
    *(Row("System Integrity Protection", 23), GAP, Row("Notes"), GAP),
    *(Row("Crashed Thread", 23), GAP),
    *_rows(23, "Exception Type", "Exception Subtype", "Exception Message", "Exception Codes"),
    *(*_rows(23, "Exception Reason", "Exception Note"), GAP, *_rows(23, *_TERMINATION), GAP),
    *(Row("Dyld Error Message"), GAP, Row("External Modification Warnings"), GAP, Row(_REGION)),
    *(GAP, Row("Application Specific Information", after=2)),
    *(Row("Application Specific Signatures", after=1), Row(BACKTRACE, after=1)),
    *(Row(LAST_EXCEPTION, after=1), Row("Kernel Triage", after=2)),
    *(Row(THREADS), BLANK, Row(STATE), GAP, Row(CALL_GRAPH), GAP, Row(OTHERS), GAP),
    *(Row(IMAGES), BLANK, Row("External Modification Summary", after=1)),
    *(Row("VM Region Summary", after=2), Row("Error Formulating Crash Report", after=1), BLANK),
    *(Row("Filtered syslog"), GAP, Row("System Profile"), GAP),
)
_MACOS_26: tuple[Row, ...] = (
    *_rows(21, *_IDENTITY, *_STORE),
    *_rows(21, "Code Type", "Role", "Parent Process", "Coalition"),
    *(*_rows(21, "Responsible Process", "Responsible PID", "User ID"), BLANK),
    *(*_rows(25, *_PLUGIN), GAP),
    *_rows(21, "Date/Time", "Launch Time", "Hardware Model", "Device Model", "OS Version"),
    *(*_rows(21, "Release Type"), Row("Bridge OS Version", 23)),
    *(*_rows(21, "Baseband Version", "Incident Kind"), BLANK),
    *_rows(21, "Crash Reporter Key", "Beta Identifier", "UDID", "Incident Identifier"),
    *(BLANK, Row("Sleep/Wake UUID", 23), GAP, *_rows(23, *_AWAKE), GAP),
    *(Row("System Integrity Protection"), GAP),
    *(*_rows(21, "Triggered by Thread", "Crashed Thread", "Highlighted by Thread"), GAP),
    *_rows(19, "Exception Type", "Exception Subtype", "Exception Message", "Exception Codes"),
    *(*_rows(19, "Exception Reason", "Exception Note"), GAP, *_rows(21, *_TERMINATION), GAP),
    *(
        Row("Dyld Error Message"),
        GAP,
        BLANK,
        Row("External Modification Warnings"),
        GAP,
        Row(_REGION),
    ),
    *(GAP, Row("Application Specific Information", after=2)),
    *(Row("Application Specific Signatures", after=1), Row(BACKTRACE, after=1)),
    *(Row(LAST_EXCEPTION, after=1), Row("Kernel Triage", after=2)),
    *(Row(THREADS), BLANK, Row(STATE), GAP, Row(CALL_GRAPH), GAP, Row(OTHERS), GAP),
    *(Row(IMAGES), BLANK, Row("External Modification Summary", after=1)),
    *(Row("VM Region Summary", after=2), Row("Error Formulating Crash Report", after=1)),
    *(Row("Filtered log messages"), GAP, Row("System Profile"), GAP),
)
ROWS: dict[Layout, tuple[Row, ...]] = {
    Layout.IOS: _IOS,
    Layout.SIMULATOR: _SIMULATOR,
    Layout.MACOS: _MACOS,
    Layout.MACOS_26: _MACOS_26,
}
"""The rows of each layout, from beginning to end of the text."""
PLACES: dict[Layout, dict[str, int]] = {
    layout: {row.label: place for place, row in enumerate(rows) if row.label}
    for layout, rows in ROWS.items()
}
"""The index of each label among the rows of a layout."""
SECTIONS = frozenset(
    {
        *("Application Specific Information", "Application Specific Signatures", "Kernel Triage"),
        *("Dyld Error Message", "External Modification Summary", "External Modification Warnings"),
        *("VM Region Summary", "VM Region Info", "Error Formulating Crash Report", "Notes"),
        *("Filtered syslog", "Filtered log messages", "System Profile", "Call graph"),
        *("Translated Code Information", "Global Trace Buffer", "Other Processes"),
        *(LAST_EXCEPTION, IMAGES, "Logical CPU", "Error Code", "Trap Number"),
    }
)
"""Labels that end a section anywhere."""
ENDS = SECTIONS | {
    *_EXCEPTION,
    *_TERMINATION,
    *("Triggered by Thread", "Crashed Thread", "Highlighted by Thread"),
}
"""Labels that end a section before the threads."""
