"""Excerpts of crash texts, and the texts of other kinds of reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from machtrace.model.report import Report, ReportedRegister, ReportKind
from machtrace.reports.crash.writer import crash_text
from machtrace.reports.machtrace_json import reports_json
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource

FRAMES = """0   Demo                          \t       0x100004000 0x100000000 + 16384
1   dyld                          \t       0x180001000 start + 16
"""


def read(text: str) -> Report:
    """Return the one report of a file."""
    (report,) = read_source(ReportSource("given", text.encode())).reports
    return report


def kscrash(error: dict[str, Any], **crashed: object) -> Report:
    """Return the report of a KSCrash file with one thread."""
    frames: list[object] = [{"instruction_addr": 0x4000}]
    thread = {"index": 0, "crashed": True, "backtrace": {"contents": frames}, **crashed}
    return read(json.dumps({"report": {"id": "1"}, "crash": {"error": error, "threads": [thread]}}))


@pytest.mark.parametrize(
    "before",
    [
        "",
        "My app crashes since yesterday:\n\n",
        "Exception Type:  00000020\nException Codes: 0xc00010ff\nHighlighted Thread:  0\n\n",
    ],
)
def test_threads_alone_are_threads(before: str) -> None:
    """With numbers, names and the one that crashed, not mere lines of stacks."""
    text = f"{before}Thread 0 name:  Dispatch queue: com.apple.main-thread\nThread 0 Crashed:\n"
    report = read(f"{text}{FRAMES}\nThread 5:\n{FRAMES}")
    assert report.kind is ReportKind.APPLE_CRASH
    assert [(thread.index, thread.crashed, len(thread.frames)) for thread in report.threads] == [
        (0, True, 2),
        (5, False, 2),
    ]
    assert report.threads[0].queue == "com.apple.main-thread"
    assert read(crash_text(report)).threads == report.threads


def test_a_header_alone_is_a_report() -> None:
    """As it is written of an event that has no threads."""
    text = (
        "Incident Identifier: AB\nHardware Model:      iPhone1,1\nProcess:             Demo [7]\n"
    )
    report = read(text)
    assert (report.kind, report.process.pid) == (ReportKind.APPLE_CRASH, 7)
    assert read(crash_text(report)) == report


def test_text_of_a_jetsam_event_is_read_again() -> None:
    """It has the ended process, and its machine."""
    body = {
        "processes": [{"name": "Demo", "pid": 7, "reason": "per-process-limit"}],
        "memoryStatus": {},
        "product": "iPhone1,1",
        "crashReporterKey": "key",
        "date": "2020-01-02 03:04:05.06 +0000",
    }
    report = read(crash_text(read(json.dumps({"bug_type": "298"}) + json.dumps(body))))
    assert (report.process.name, report.system.model) == ("Demo", "iPhone1,1")


def test_codes_and_addresses_of_other_kinds_are_written_as_apple_s() -> None:
    """KSCrash has them as numbers."""
    error = {
        "mach": {"exception_name": "EXC_BAD_ACCESS", "code_name": "KERN_INVALID_ADDRESS"}
        | {"code": 1, "subcode": 0xDEAD},
        "signal": {"name": "SIGSEGV"},
        "address": 0xDEAD,
        "type": "mach",
    }
    report = kscrash(error)
    text = crash_text(report)
    assert "Exception Type:  EXC_BAD_ACCESS (SIGSEGV)\n" in text
    assert "Exception Subtype: KERN_INVALID_ADDRESS at 0x000000000000dead\n" in text
    assert "Exception Codes: 0x0000000000000001, 0x000000000000dead\n" in text
    again = read(text).exception
    assert again is not None
    assert again.raw_codes == (1, 0xDEAD)
    assert again.address == 0xDEAD


def test_other_incidents_than_crashes_have_a_kind() -> None:
    """KSCrash has numbers of nothing where the main thread hangs: they are no exception's."""
    error = {"mach": {"exception": 0, "code": 0}, "signal": {"signal": 0}, "address": 0}
    text = crash_text(kscrash({**error, "type": "deadlock"}))
    assert "\nIncident Kind:       deadlock\n" in text
    assert "Exception Type" not in text
    assert crash_text(read(text)) == text


def test_registers_with_long_names_are_read() -> None:
    """KSCrash has one that is called ``exception`` of 32-bit machines."""
    registers = {"basic": {"r0": 1, "pc": 0x4000}, "exception": {"exception": 3, "far": 5}}
    report = kscrash({"type": "signal", "signal": {"name": "SIGSEGV"}}, registers=registers)
    again = read(crash_text(report)).threads[0].registers
    assert again is not None
    assert ReportedRegister("exception", 3) in again.registers
    assert ReportedRegister("far", 5) in again.registers


@pytest.mark.parametrize("odd", ["hello", 7, [1, {"a": "b"}], True])
def test_entries_that_are_not_objects_are_stored(odd: object) -> None:
    """KSCrash has frames, threads and images; MetricKit stacks, frames and diagnostics."""
    body = {
        "binary_images": [odd],
        "crash": {"threads": [odd, {"backtrace": {"contents": [odd]}}]},
    }
    payload = {
        "crashDiagnostics": [odd, {"callStackTree": {"callStacks": [odd]}}],
        "hangDiagnostics": [
            {
                "callStackTree": {
                    "callStacks": [{"callStackRootFrames": [odd, {"subFrames": [odd]}]}]
                }
            }
        ],
    }
    for document, count in ((body, 3), (payload, 4)):
        reports = read_source(ReportSource("given", json.dumps(document).encode())).reports
        written = reports_json(reports)
        assert written.count(json.dumps({"entry": odd})) == count
        assert read_source(ReportSource("again", written.encode())).reports == reports
        assert any("is not an object" in text for report in reports for text in report.warnings)


def test_a_report_of_a_crash_in_kscrash_may_be_all_there_is() -> None:
    """It was cut off behind the report that was being written."""
    inner = {"report": {"id": "1"}, "binary_images": [{"name": "/a/Demo", "image_addr": 4096}]}
    reports = read_source(
        ReportSource("given", json.dumps({"recrash_report": inner}).encode()[:-2])
    ).reports
    assert [report.kind for report in reports] == [ReportKind.KSCRASH] * 2
    assert [image.name for image in reports[1].images] == ["Demo"]


def test_empty_name_lines_are_preserved() -> None:
    """As iOS 10 to 13 wrote them; a thread without such a line gets none."""
    text = f"Thread 0 name:\nThread 0 Crashed:\n{FRAMES}\nThread 1:\n{FRAMES}"
    report = read(text)
    assert report.threads[0].name is None
    written = crash_text(report)
    assert "\nThread 0 name:\nThread 0 Crashed:\n" in f"\n{written}"
    assert written.count("name:") == 1
    assert read(written) == report


def test_no_label_is_added_to_a_text() -> None:
    """Old systems name the crashed thread in its heading alone."""
    text = f"Process: Demo [7]\nException Type: EXC_CRASH\n\nThread 1 Crashed:\n{FRAMES}"
    assert "Triggered" not in crash_text(read(text))
    assert read(crash_text(read(text))) == read(text)


def test_an_exception_without_a_stack_has_no_section_for_one() -> None:
    """KSCrash has its stack in the thread."""
    report = kscrash({"type": "nsexception", "nsexception": {"name": "Bad", "reason": "words"}})
    text = crash_text(report)
    assert "Last Exception Backtrace" not in text
    assert "*** Terminating app due to uncaught exception 'Bad', reason: 'words'" in text


def test_numbers_of_nothing_are_no_exception() -> None:
    """They are written again as they were."""
    text = f"Process: Demo [7]\nException Type:  0 (0)\n\nThread 0 Crashed:\n{FRAMES}"
    report = read(text)
    assert report.exception is not None
    assert (report.exception.type, report.exception.signal) == (None, None)
    assert "Exception Type:  0 (0)\n" in crash_text(report)


def test_images_known_from_frames_alone() -> None:
    """Their start is stored; no line is written for them, and odd text stays as it is."""
    frames = (
        "0   Demo                          \t       0x100004000 0x100000000 + 16384\n"
        "1   Demo                          \t       0x100004010 0x100000000 + 16400\n"
        "2   AppKit                        \t       0x190004010 -[NSApplication run] + 4\n"
        "3   Other                         \t       0x190004010 0x100000000 + 1\n"
        "4   ???                           \t            0x4010 0 + 16400\n"
    )
    text = f"Process: Demo [7]\nException Type:  EXC_CRASH\n\nThread 0 Crashed:\n{frames}"
    report = read(text)
    assert [(image.name, image.load_address) for image in report.images] == [
        ("Demo", 0x100000000),
        ("AppKit", None),
        ("Other", None),
    ]
    assert [(frame.image, frame.offset) for frame in report.threads[0].frames] == [
        (0, 0x4000),
        (0, 0x4010),
        (1, None),
        (2, None),
        (None, None),
    ]
    written = crash_text(report)
    assert frames in written
    assert "Binary Images" not in written
    assert read(written).images == report.images


def test_extra_fields_of_image_and_fault_lines_are_preserved() -> None:
    """An image has architecture and version; an error code may be bare hexadecimal digits."""
    text = (
        f"Process: Demo [7]\nException Type:  EXC_CRASH\n\nThread 0 Crashed:\n{FRAMES}\n"
        "Thread 0 crashed with X86 Thread State (64-bit):\n  rip: 0x0000000000000001\n\n"
        "Logical CPU:     3\nError Code:      02000148 (no mapping)\nTrap Number:     133\n\n"
        "Binary Images:\n"
        "       0x100000000 -        0x10000ffff +Demo x86_64 (4.9 - 1.0)"
        "  <00000000000000000000000000000001> /a/Demo\n"
    )
    report = read(text)
    state = report.threads[0].registers
    assert state is not None
    assert {register.name: register.value for register in state.registers}["err"] == 0x2000148
    written = crash_text(report)
    assert "Error Code:      02000148 (no mapping)\n" in written
    assert "+Demo x86_64 (4.9 - 1.0)  <" in written
    assert read(written).threads == report.threads
    assert read(written).images == report.images


def test_no_heading_of_images_is_added() -> None:
    """To a text that was copied in part."""
    text = f"Process: Demo [7]\nException Type:  EXC_CRASH\n\nThread 0 Crashed:\n{FRAMES}"
    without = text.replace("0x100000000 + 16384", "main + 4")
    assert "Binary Images" not in crash_text(read(without))


def test_a_lost_frame_is_a_warning() -> None:
    """Not one of a recursion that the text states to omit."""
    frames = (
        "0   Demo                          \t       0x100004000 f + 4\n"
        "%s\n"
        "4   Demo                          \t       0x100004010 (Missing UUID ab)\n"
    )
    head = "Process: Demo [7]\nException Type:  EXC_CRASH\n\nThread 2 Crashed:\n"
    report = read(head + frames % "a line that a forum mangled")
    assert report.warnings == ("thread 2: no frames 1–3 in the text",)
    assert report.threads[0].frames[1].symbol is None
    assert frames.partition("\n")[2].partition("\n")[2] in crash_text(report)
    elided = "-------- ELIDED 3 LEVELS OF RECURSION THROUGH 0x100004000 f + 4"
    assert read(head + frames % elided).warnings == ()
