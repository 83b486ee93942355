"""PLCrashReporter's reports: strings that are no UTF-8, messages that are cut off, signatures."""

from __future__ import annotations

import pytest

from machtrace.errors import FormatError
from machtrace.model.report import Adjustment, Report
from machtrace.render.pprof import Message
from machtrace.reports.plcrash.reader import read
from machtrace.reports.plcrash.text import plcrash_text
from machtrace.reports.source import ReportSource
from tests.support.reports.samples import APP_BASE, APP_UUID, PLCRASH

HEAD = b"plcrash\x01"


def message(*fields: tuple[int, object]) -> Message:
    """Return a message of numbers, texts, bytes and messages."""
    made = Message()
    for number, value in fields:
        if isinstance(value, int):
            made.number(number, value)
        elif isinstance(value, str):
            made.text(number, value)
        elif isinstance(value, bytes):
            made.data(number, value)
        else:
            made.message(number, value)
    return made


def read_one(*fields: tuple[int, object]) -> Report:
    """Return the report of a message."""
    (report,) = read(ReportSource("report", HEAD + bytes(message(*fields))))
    return report


IMAGE = message((1, APP_BASE), (2, 0x8000), (3, "/x/App"), (4, APP_UUID.bytes))


def test_the_numbers_are_the_published_ones() -> None:
    """``PLCrashReport.proto`` has frames in threads, and images with UUIDs of sixteen bytes."""
    symbol = message((1, "_main"), (2, APP_BASE + 0x100), (3, APP_BASE + 0x180))
    frames = [message((3, APP_BASE + 0x104), (6, symbol)), message((3, APP_BASE + 0x204))]
    thread = message((1, 5), *((2, frame) for frame in frames), (3, 1))
    report = read_one((3, thread), (4, IMAGE))
    (found,) = report.threads
    assert (found.index, found.crashed) == (5, True)
    first, second = found.frames
    assert (first.image, first.offset, first.adjustment) == (0, 0x104, Adjustment.EXACT)
    assert (second.offset, second.adjustment) == (0x204, Adjustment.RETURN)
    assert first.symbol is not None
    assert (first.symbol.name, first.symbol.offset) == ("_main", 4)
    assert first.details == {"end_address": APP_BASE + 0x180}
    assert (report.images[0].uuid, report.images[0].name) == (APP_UUID, "App")


def test_the_frames_of_an_exception_are_all_return_addresses() -> None:
    """Nobody was interrupted there."""
    frames = [(3, message((3, APP_BASE + offset))) for offset in (0x104, 0x204)]
    report = read_one((5, message((1, "NSRange"), (2, "beyond"), *frames)), (4, IMAGE))
    thrown = report.language_exception
    assert thrown is not None
    assert (thrown.name, thrown.reason) == ("NSRange", "beyond")
    assert {frame.adjustment for frame in thrown.frames} == {Adjustment.RETURN}


@pytest.mark.parametrize("packed", [False, True])
def test_mach_exceptions_have_names_and_codes(packed: bool) -> None:  # noqa: FBT001 - a parameter
    """``EXC_BAD_ACCESS`` is 1; codes are in order, each a field or all in one."""
    codes = [(2, b"\x01\x10")] if packed else [(2, 1), (2, 16)]
    report = read_one((6, message((1, "SIGSEGV"), (4, message((1, 1), *codes)))))
    assert report.exception is not None
    assert (report.exception.type, report.exception.raw_codes) == ("EXC_BAD_ACCESS", (1, 16))


def test_a_signature_is_taken_off_where_an_image_proves_it() -> None:
    """The details preserve it."""
    signed = 0x0055_0000_0000_0000 | APP_BASE + 0x104
    report = read_one((3, message((2, message((3, signed))))), (4, IMAGE))
    (frame,) = report.threads[0].frames
    assert (frame.address, frame.offset) == (APP_BASE + 0x104, 0x104)
    assert frame.details == {"pc": signed}


def test_undecodable_strings_are_preserved() -> None:
    """Reports exist whose build of the system is rubbish."""
    report = read_one((1, message((2, "15.0"), (5, b"\xff\xfe24A"))))
    assert report.system.os_build == "\udcff\udcfe24A"


def test_unknown_fields_are_preserved() -> None:
    """The details have them by their numbers, also in messages within others."""
    report = read_one((77, 5), (78, b"\x80\x80\x80"), (7, message((1, "App"), (99, "new"))))
    assert report.details == {
        "process_info": {"field 99": [b"new".hex()]},
        "field 77": [5],
        "field 78": ["808080"],
    }


def test_a_truncated_message_loses_nothing() -> None:
    """Fields before the cut are read, the rest is stored as it is."""
    inner = bytes(message((1, "App"), (2, 455))) + b"\x1a\x7fno"
    (report,) = read(ReportSource("cut", HEAD + b"\x3a" + bytes([len(inner)]) + inner))
    assert (report.process.name, report.process.pid) == ("App", 455)
    assert report.details["process_info"] == {"no field": b"\x1a\x7fno".hex()}


def test_a_symbol_that_begins_behind_its_frame_has_no_offset() -> None:
    """Its start is stored."""
    symbol = message((1, "_late"), (2, APP_BASE + 0x300))
    frame = message((3, APP_BASE + 0x104), (6, symbol))
    report = read_one((3, message((2, frame))), (4, IMAGE))
    (found,) = report.threads[0].frames
    assert found.symbol is not None
    assert found.symbol.offset is None
    assert found.details == {"start_address": APP_BASE + 0x300}


def test_another_version_is_refused() -> None:
    """With the number that was found."""
    with pytest.raises(FormatError, match="version 2"):
        read(ReportSource("report", b"plcrash\x02\x0a\x00"))


def test_the_text_has_the_formatters_lines() -> None:
    """``PLCrashReportTextFormatter.m`` has its labels, one underscore less, and inclusive ends."""
    (report,) = read(ReportSource("report", PLCRASH))
    lines = plcrash_text(report).split("\n")
    assert "Process:         App [455]" in lines
    assert "Exception Codes: SEGV_MAPERR at 0x10" in lines
    assert "Thread 0 Crashed:" in lines
    assert f"0   {'App':<35s} 0x00000001000001a0 main + 16" in lines
    assert lines[-2] == (
        "       0x100000000 -        0x100007fff +App arm64  <???> /private/var/App.app/App"
    ) or lines[-2].startswith("       0x100000000 -        0x100007fff ")
