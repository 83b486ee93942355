"""Calls that are the last instruction of their image, whose return address is beyond it."""

from __future__ import annotations

import json

import pytest

from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from tests.support.reports.samples import APP_BASE, APP_UUID, CRASH, KSCRASH

END = APP_BASE + 0x8000


def _crash() -> bytes:
    line = f"1   App                           \t       {END:#x} 0x100000000 + 32768\n".encode()
    return CRASH.replace(
        b"1   App                           \t       0x1000001a0 0x100000000 + 416\n", line
    )


def _kscrash() -> bytes:
    report = json.loads(KSCRASH)
    frames = report["crash"]["threads"][0]["backtrace"]["contents"]
    frames[1] = {"instruction_addr": END, "object_addr": APP_BASE, "object_name": "App"}
    return json.dumps(report).encode()


@pytest.mark.parametrize("data", [_crash(), _kscrash()], ids=["crash", "kscrash"])
def test_a_call_at_the_end_of_an_image_is_in_it(data: bytes) -> None:
    """After a function that never returns, the return address is the next image's."""
    (report,) = read_source(ReportSource("given", data)).reports
    frame = report.threads[0].frames[1]
    assert frame.address == END
    assert frame.image is not None
    assert report.images[frame.image].uuid == APP_UUID
    assert frame.lookup == 0x7FFF


def test_kscrash_lines_have_both_the_symbol_and_the_image() -> None:
    """The symbol is in brackets behind the offset from the image."""
    data = CRASH.replace(
        b"0x1000001a0 0x100000000 + 416\n", b"0x1000001a0 0x100000000 + 416 (-[A (b) c] + 8)\n"
    )
    (report,) = read_source(ReportSource("given", data)).reports
    frame = report.threads[0].frames[1]
    assert frame.symbol is not None
    assert (frame.symbol.name, frame.symbol.offset, frame.offset) == ("-[A (b) c]", 8, 0x1A0)
