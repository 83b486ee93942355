"""The layouts that Apple's text of a crash has had.

Report version 104 is what iOS and what is made like it writes, 12 what macOS wrote up to 15, and
what macOS has shown since 26 has no version. They differ in labels, columns, order, and in how
threads, terminations and images are spelt. Which label comes where is in
:mod:`~machtrace.reports.crash.layout_rows`.
"""

from __future__ import annotations

import re
from enum import Enum

from machtrace.model.report import Report, ReportKind

_MAC_NAMES = ("macOS", "Mac OS X", "OS X")
_MAC_VERSION = re.compile(r"macOS (?P<major>[0-9]{1,3})\b")
_FIRST_WITHOUT_VERSION = 26
_IOS_VERSION = "104"
_MAC_PLATFORM = 1
_SIMULATORS = frozenset({7, 8, 9, 12})
"""Of ``mach-o/loader.h``: of iOS, tvOS, watchOS and visionOS. Programs in them say which macOS is
around."""
_UPTIME = "uptime"
"""What macOS shows of every report, of iOS too, since it shows no version."""


class Layout(Enum):
    """A layout."""

    IOS = "104"
    SIMULATOR = "104 of a simulator"
    """Labels of iOS; threads and images as macOS has them, which is around."""
    MACOS = "12"
    MACOS_26 = "macOS 26"


def is_of_mac(report: Report) -> bool:
    """Whether the report says that it is of macOS."""
    if report.system.os_name is not None:
        return report.system.os_name.startswith(_MAC_NAMES)
    return report.incident.details.get("platform") == _MAC_PLATFORM


def layout_of(report: Report) -> Layout:
    """The layout that the report is written in: the one it was read from, else its system's."""
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
