"""Lines of logs: what a log puts before each of them is no part of a report."""

from __future__ import annotations

import re

import pytest

from machtrace.reports.log_lines import log_lines
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.own_text import backtrace_text
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


@pytest.mark.parametrize(
    "text",
    [
        "* thread #1, name = 'a'\n  * frame #0: 0x10 a`f\n    frame #3: 0x20 a`g + 1\n",
        "#0  0x0000000000000010 in f ()\n#3  0x0000000000000020 in g () at a.c:3\n",
        (
            "==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x1\n"
            "    #0 0x10 in f /a.c:1:2\n    #3 0x20 in g (/a+0x20)\n"
        ),
        (
            "*** Program crashed: Bad pointer dereference at 0x4 ***\n\nThread 0 crashed:\n\n"
            "0      0x0000000000000010 f() + 1 in a\n3 [ra] 0x0000000000000020 g + 5 in a\n"
        ),
    ],
    ids=["lldb", "gdb", "sanitizer", "swift"],
)
def test_lost_frames_are_a_warning(text: str) -> None:
    """And the others keep their numbers."""
    (report,) = read_source(ReportSource("log", text.encode())).reports
    assert report.warnings == ("thread 0: no frames 1–2 in the text",)
    lines = backtrace_text(report).splitlines()
    assert [line[:4].strip() for line in lines[-3:]] == ["0", "…", "3"]
