"""Texts of crashes that are odd, old, or cut off: nothing of them is lost, none takes long."""

from __future__ import annotations

import time

import pytest

from machtrace.errors import FormatError
from machtrace.model.report import Adjustment, Report
from machtrace.reports.crash.frame_lines import FrameLines
from machtrace.reports.crash.header import Header
from machtrace.reports.crash.lines import read_image
from machtrace.reports.crash.reader import read, read_text
from machtrace.reports.crash.writer import crash_text
from machtrace.reports.ips.writer import ips_text
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource

OLD_MAC = """\
Process:         Old Tool [12]
Path:            /Applications/Old Tool.app/Contents/MacOS/Old Tool
Identifier:      com.example.old
Version:         ??? (???)
Code Type:       X86-64 (Native)
Parent Process:  launchd [1]
Invented Label:  is stored

Date/Time:       2014-07-21 12:34:59.093 +0100
OS Version:      Mac OS X 10.9.5 (13F34)
Report Version:  11

Interval Since Last Report:          1289 sec

Crashed Thread:  0  Dispatch queue: com.apple.main-thread

Exception Type:  EXC_BAD_ACCESS (SIGSEGV)
Exception Codes: KERN_INVALID_ADDRESS at 0x0000000000000018

VM Regions Near 0x18:
-->
    __TEXT  0000000100000000-0000000100004000 [   16K] r-x/rwx SM=COW

Application Specific Information:
objc_msgSend() selector name: draw
Path: not a label here

Thread 0 Crashed:: Dispatch queue: com.apple.main-thread
0   com.example.old               \t0x0000000100001234 -[View draw] + 52
1   libold.dylib 0x0000000200000010 helper(int, char*) + 16
2   ???                           \t0x0000000300000000 0 + 12884901888

Thread 0 crashed with X86 Thread State (64-bit):
  rax: 0x0000000000000055  rbx: 0x0000000000000000
  rip: <unavailable>  rfl: 0x0000000000010203  cr2: 0x0000000000000018

Binary Images:
       0x100000000 -        0x100003ff7 +com.example.old (1.11 - MyFramework 1.11) \
<C0FFEE00-1111-2222-3333-444455556666> /Applications/Old Tool.app/Contents/MacOS/Old Tool
       0x200000000 -        0x200000fff  libold.dylib (1.0) /usr/lib/libold.dylib
this line is no image

External Modification Summary:
  Calls made by this process:
    task_for_pid: 2

Model: iMac11,3, BootROM IM112.0057
Graphics: a card
"""


def words(text: str) -> set[str]:
    """Return all words of a text, without columns and the spelling of UUIDs."""
    return {
        word.lower().replace("-", "").removeprefix("0x").lstrip("0").strip("<>+(),:") or "0"
        for word in text.split()
    }


def test_an_old_text_of_macos_is_read() -> None:
    """Report version 11: identifiers as images' names, no tabs, odd sections."""
    report = read_text(OLD_MAC)
    assert (report.process.name, report.process.pid) == ("Old Tool", 12)
    assert report.system.os_name == "Mac OS X 10.9.5"
    assert report.exception is not None
    assert report.exception.codes == "KERN_INVALID_ADDRESS at 0x0000000000000018"
    assert report.exception.address == 0x18
    assert report.application_information == (
        ("", ("objc_msgSend() selector name: draw", "Path: not a label here")),
    )
    first, second, third = report.threads[0].frames
    assert (first.image, first.offset, second.image, third.image) == (0, 0x1234, 1, None)
    assert second.symbol is not None
    assert (second.symbol.name, second.symbol.offset) == ("helper(int, char*)", 16)
    assert third.symbol is None
    assert report.images[0].name == "Old Tool"
    assert report.images[0].version == "1.11 - MyFramework 1.11"
    assert report.images[1].uuid is None
    assert report.images[1].path == "/usr/lib/libold.dylib"


def test_an_old_text_is_written_in_full() -> None:
    """Columns differ, and the frame's image has its file's name; every word is there."""
    text = crash_text(read_text(OLD_MAC))
    assert words(OLD_MAC) - words(text) == set()
    assert read_text(text) == read_text(OLD_MAC)


def test_labels_that_nobody_knows_come_back_at_their_place() -> None:
    """Between the labels that they were between."""
    lines = crash_text(read_text(OLD_MAC)).splitlines()
    starts = [line.partition(":")[0] for line in lines]
    assert starts.index("Parent Process") + 1 == starts.index("Invented Label")
    assert starts.index("Crashed Thread") > starts.index("Interval Since Last Report")
    assert starts.index("VM Regions Near 0x18") < starts.index("Application Specific Information")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends_make_no_difference(encoding: str, line_end: str) -> None:
    """As texts are sent by mail and saved by editors."""
    data = OLD_MAC.replace("\n", line_end).encode(encoding)
    assert read(ReportSource("a text", data)) == (read_text(OLD_MAC),)


def test_bytes_that_are_no_text_come_back() -> None:
    """A name that is no UTF-8 is the same bytes again."""
    data = OLD_MAC.encode().replace(b"is stored", b"is \xff\xfe stored \xe2\x80\x8d too")
    (report,) = read(ReportSource("a text", data))
    assert b"is \xff\xfe stored \xe2\x80\x8d too" in crash_text(report).encode(
        "utf-8", "surrogateescape"
    )


def test_a_text_that_was_cut_off_anywhere_is_read_and_written() -> None:
    """After any character: what was read before is there still."""
    whole = len(read_text(OLD_MAC).threads[0].frames)
    for end in range(0, len(OLD_MAC), 7):
        report = read_text(OLD_MAC[:end])
        assert read_text(crash_text(report)).threads == report.threads
        if "Thread 0 crashed" in OLD_MAC[:end]:
            assert len(report.threads[0].frames) == whole
        ips_text(report)


def test_texts_that_were_joined_are_several_reports() -> None:
    """As written by one call for several reports."""
    text = crash_text(read_text(OLD_MAC))
    other = text.replace("[12]", "[13]")
    reports = read(ReportSource("two", f"{text}\n{other}".encode()))
    assert [report.process.pid for report in reports] == [12, 13]
    assert reports[0] == read_text(text)


def test_two_threads_of_one_number_are_both_read() -> None:
    """And so are registers and names of threads that there are not."""
    text = OLD_MAC.replace("Thread 0 crashed with", "Thread 9 crashed with").replace(
        "Thread 0 Crashed::",
        "Thread 7 name:  lost\nThread 0:\n0   a  0x1000000 f + 1\n\nThread 0::",
    )
    report = read_text(text)
    assert [thread.index for thread in report.threads] == [0, 1]
    assert len(report.warnings) == 1
    written = crash_text(report)
    assert "Thread 9 crashed with X86 Thread State (64-bit):" in written
    assert "Thread 7 name: lost" in " ".join(written.split())
    assert read_text(written) == report


@pytest.mark.parametrize(
    ("line", "name", "address", "symbol"),
    [
        (
            "0   MyApp Pro arm64 0x0000000100000cc8 main + 4",
            "MyApp Pro arm64",
            0x1_0000_0CC8,
            "main",
        ),
        (
            "1   He 0x1                        \t0x0000000100000cc8 f + 4",
            "He 0x1",
            0x1_0000_0CC8,
            "f",
        ),
        ("2   He 0x1    0x0000000100000cc8 f + 4", "He 0x1", 0x1_0000_0CC8, "f"),
        ("3  a.out  0x1000 operator+(int) + 2", "a.out", 0x1000, "operator+(int)"),
        (
            "4   B 0x100000000 -[A(C) d:] (in B) + 8 (a b.m:12)",
            "B",
            0x1_0000_0000,
            "-[A(C) d:]",
        ),
    ],
)
def test_names_of_images_may_look_like_anything(
    line: str, name: str, address: int, symbol: str
) -> None:
    """A name may contain spaces and text that looks like an address."""
    lines = FrameLines(())
    frame = lines.read(line, Adjustment.EXACT, int(line.split(maxsplit=1)[0]))
    assert frame is not None
    assert frame.address == address
    assert [image.name for image in lines.unlisted] == [name]
    assert frame.symbol is not None
    assert frame.symbol.name == symbol


HOSTILE = [
    " ",
    "\t",
    "(",
    ")",
    " (",
    "<",
    "+",
    " + ",
    "0x1 ",
    " 0x",
    "[",
    "]",
    "A",
    "A:",
    ": ",
    "1",
]
HEADS = ["", "0   ", "0   image \t", "0   image 0x1 ", "0x1 - 0x2 ", "0x1 - 0x2 a <", "Thread 0:: "]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("piece", HOSTILE)
def test_a_long_line_takes_no_longer_than_it_is_long(head: str, piece: str) -> None:
    """Patterns could backtrack in these lines of 16,000 and of 100,000 characters."""
    for length in (16_000, 100_000):
        for tail in ("", "x", ")", "]"):
            line = head + (piece * length)[:length] + tail
            start = time.thread_time()  # what other threads of this process do does not count
            read_image(line)
            FrameLines(()).read(line, Adjustment.EXACT, 0)
            header = Header()
            for label in ("Process", "Version", "Termination Reason", "Exception Type", "Path"):
                header.read(f"{label}: {line}")
            header.process()
            header.termination()
            header.exception()
            # It takes milliseconds, and many seconds where it grows with the square; in between
            # is what a slow machine takes, and a garbage collection of a large process.
            assert time.thread_time() - start < 1


@pytest.mark.parametrize("piece", ["0   a \t0x1 (((((", " + + + +", "Thread 0:", "0x1 - 0x2 a <<<"])
def test_many_hostile_lines_take_seconds_at_most(piece: str) -> None:
    """20,000 of them, where a time that grows with their square would be minutes."""
    lines = "\n".join([(piece * 20)[:160]] * 20_000)
    text = f"{OLD_MAC.partition('Binary Images:')[0]}Thread 1:\n{lines}\nBinary Images:\n{lines}\n"
    start = time.thread_time()
    report = read_text(text)
    crash_text(report)
    assert time.thread_time() - start < 10


def test_headings_that_are_not_headings_are_lines() -> None:
    """A second list of images, and an end in the middle."""
    report = read_text(OLD_MAC + "\nBinary Images:\n0x1 - 0x2 late (1.0) /late\n")
    assert "late" in crash_text(report)
    assert read_text(crash_text(report)) == report


def test_a_text_of_nothing_known_is_no_crash() -> None:
    """One label is not enough."""
    assert is_read_as("Process: a [1]\nsome words\n") is None


def is_read_as(text: str) -> Report | None:
    """Return the report of a text that its own reader takes, or None."""
    try:
        return read_source(ReportSource("a text", text.encode())).reports[0]
    except FormatError:
        return None


@pytest.mark.parametrize(
    ("digits", "identifier"),
    [
        ("4" * 33, None),
        ("0" * 40, None),
        ("4" * 34, "4" * 34),
        ("8e9fd827446c24067541ac5390e6f527fb5947bb", "8e9fd827446c24067541ac5390e6f527fb5947bb"),
        ("4-" * 17, None),
    ],
)
def test_placeholders_for_a_uuid(digits: str, identifier: str | None) -> None:
    """A build-id is one; of what has too many digits, or half a byte, nothing is made."""
    image = read_image(f"  0x1000 - 0x1fff a (*) <{digits}> /b")
    assert image is not None
    assert (None if image.uuid is None else str(image.uuid)) == identifier
