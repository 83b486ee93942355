"""Lines of logs: what a log puts before each of them is no part of a report."""

from __future__ import annotations

import re

import pytest

from machtrace.reports.log_lines import log_lines
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.writers import write_reports
from tests.support.reports.logs import GDB, SANITIZER, SWIFT

MARK = re.compile("([ ]*)#")


def read(data: bytes) -> bytes:
    """Return the reports of a text as JSON, without spaces: other lines are unchanged."""
    document = write_reports(read_source(ReportSource("log", data)).reports, "json")
    return re.sub(rb" |\\t", b"", document)


@pytest.mark.parametrize("text", [SWIFT, GDB, SANITIZER], ids=["swift", "gdb", "sanitizer"])
@pytest.mark.parametrize(
    "prefix",
    [
        "> ",
        "> > \t",
        "        ",
        "2026-02-03T04:05:06.1234567Z ",
        "2026-02-03T04:05:06+01:00     ",
        "2026-02-03 04:05:06.123456+0100 My App[455:1234] ",
        "02-03 04:05:06.123 I/my tag  ( 455): ",
        "02-03 04:05:06.123   455   460 I my.tag : ",
        "\x1b[1m",
    ],
)
def test_a_prefix_changes_nothing(text: bytes, prefix: str) -> None:
    """Nor does an indentation behind it."""
    lines = text.decode().splitlines()
    prefixed = "".join(f"{prefix}{line}".rstrip() + "\n" for line in lines)
    assert read(prefixed.encode()) == read(text)


def test_only_the_prefix_of_the_first_mark_is_removed() -> None:
    """The program's own lines before a report may look alike."""
    text = "2026-02-03T04:05:06Z started\n  #0 a\n    b\n> c\n #1 d"
    assert log_lines(text, MARK) == ["2026-02-03T04:05:06Z started", "#0 a", "  b", "> c", " #1 d"]
    assert log_lines("> a\n> b", MARK) == ["> a", "> b"]
