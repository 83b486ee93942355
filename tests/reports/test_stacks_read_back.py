"""Stacks written in other tools' formats and read back; and lines of no kind."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.model.address import Avma, ImageOffset
from machtrace.model.report import (
    Adjustment,
    Report,
    ReportedFrame,
    ReportedImage,
    ReportedSymbol,
    ReportedThread,
    ReportKind,
)
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.writers import write_reports
from tests.support.reports.variants import REPORT_VARIANTS

NAMES = (
    "main",
    "-[Foo bar:baz:]",
    "a::operator+(int, b) const",
    "f<int, g<1> >(h [2])",
    "$s3App1fyyF",
)
IMAGES = tuple(
    ReportedImage(
        name=name,
        path=f"/x/{name}",
        arch="arm64",
        load_address=Avma((index + 1) << 32),
        size=0x10000,
    )
    for index, name in enumerate(
        ("App", "My App (2)", "A Framework With A Name Of More Than 35", "dyld")
    )
)

FRAMES = st.builds(
    lambda image, offset, name, into: (image, offset, name, into if name else None),
    st.integers(0, len(IMAGES) - 1),
    st.integers(0x100, 0xFFF0),
    st.none() | st.sampled_from(NAMES),
    st.integers(1, 0x80),
)


def report_of(stack: list[tuple[int, int, str | None, int | None]]) -> Report:
    """Return a report with one thread."""
    frames = tuple(
        ReportedFrame(
            Avma(((image + 1) << 32) + offset),
            image,
            ImageOffset(offset),
            Adjustment.RETURN if number else Adjustment.EXACT,
            None if name is None else ReportedSymbol(name, into),
        )
        for number, (image, offset, name, into) in enumerate(stack)
    )
    thread = ReportedThread(index=0, id=7001, name="worker", crashed=True, frames=frames)
    return Report(kind=ReportKind.MACHTRACE, threads=(thread,), images=IMAGES)


@pytest.mark.parametrize("form", ["nsthread", "lldb", "sample"])
@given(stack=st.lists(FRAMES, min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_stacks_come_back_with_the_same_frames(
    form: str, stack: list[tuple[int, int, str | None, int | None]]
) -> None:
    """Addresses, images and names."""
    written = write_reports((report_of(stack),), form)
    data = written if isinstance(written, bytes) else written.encode()
    (read,) = read_source(ReportSource(form, data)).reports
    if form == "sample":
        frames = [node.frame for node in reversed(read.trees[0].nodes)]
    else:
        frames = list(read.threads[0].frames)
    assert [
        (
            frame.address,
            "" if frame.image is None else read.images[frame.image].name,
            None if frame.symbol is None or "unnamed" in frame.symbol.name else frame.symbol.name,
        )
        for frame in frames
    ] == [
        (((image + 1) << 32) + offset, IMAGES[image].name, name) for image, offset, name, _ in stack
    ]


@pytest.mark.parametrize("name", list(REPORT_VARIANTS))
def test_rare_forms_come_back_from_json(name: str) -> None:
    """Import, export and another import return the same stack."""
    reports = read_source(ReportSource(name, REPORT_VARIANTS[name])).reports
    again = write_reports(reports, "json")
    data = again if isinstance(again, bytes) else again.encode()
    assert read_source(ReportSource("again", data)).reports == reports


HEADS = (
    *("", "    10 ", "    1 x  (in ", "    1 x  (in a) ", "  1  x (", "  1  x (a + 1) [0x1] "),
    *(
        "    1 Thread_1   DispatchQueue_1: ",
        '  Thread 0x1    DispatchQueue "',
        "frame #0: 0x1 a`b at ",
    ),
    *("0   a 0x00000001 ", "a(", "* thread #1, name = '", "frame #0: 0x1 a` ", "0x1 - 0x2 a <"),
)
UNITS = (
    *(
        " ",
        "\t",
        "(",
        ")",
        " (",
        ") ",
        "[",
        "]",
        '"',
        "'",
        "`",
        " + 1",
        "0x1,",
        " at ",
        " in ",
        " (in ",
    ),
    *(" [opt]", " [inlined] ", "\\'", "[0x1]", "| ", "1 samples (", '","', "\\n"),
)


def test_long_lines_take_time_by_their_length() -> None:
    """No pattern backtracks over repetitions."""
    lines = [head + unit * (8000 // len(unit)) for head, unit in product(HEADS, UNITS)]
    starts = (
        "Analysis of sampling a (pid 1)\nCall graph:\n",
        "Event: hang\nProcess: a [1]\n",
        "frame #0: 0x1 a`b\n",
        "0   a  0x00000001 f + 1\n",
    )
    began = time.thread_time()
    for start in starts:
        assert read_source(ReportSource("long", (start + "\n".join(lines)).encode())).reports
    assert time.thread_time() - began < 20, "lines of 10 MB take a second or two"
