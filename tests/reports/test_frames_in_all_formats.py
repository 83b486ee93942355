"""Facts of frames are in every format that has a place for them."""

from __future__ import annotations

import gzip
import json
import re
from html import escape

import pytest

from machtrace.model.report import Report, ReportedFrame, ReportKind
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.writers import FORMATS, as_shown
from tests.support.reports.samples import REPORT_SAMPLES

OF_THREADS = {"text", "stacks-json", "nsthread", "bs", "lldb", "kscrash", "plcrash"}
"""Formats without a place for trees of samples."""
OF_FUNCTIONS = {"folded", "svg", "speedscope"}
"""Formats without a place for an image beside its function; speedscope has one or its file."""


def read(data: bytes) -> tuple[Report, ...]:
    """Return the reports in some bytes."""
    return read_source(ReportSource("given", data)).reports


def without_images(kind: str) -> bytes | None:
    """Return the sample of a kind without its list of images; None if it cannot lack it."""
    data = REPORT_SAMPLES[kind]
    if kind in ("crash", "sample", "spindump", "swift"):
        return re.sub(rb"(?m)^[ \t]*(?:Binary )?Images[^\n]*:\n+(?:[^\n]*0x[^\n]*\n)+", b"", data)
    key = {"ips": "usedImages", "kscrash": "binary_images"}.get(kind)
    if key is None:
        return None
    head, _, body = data.rpartition(b"\n") if kind == "ips" else (b"", b"", data)
    document = json.loads(body)
    document[key] = []
    return head + b"\n" + json.dumps(document).encode()


def stacks_of(report: Report, form: str) -> list[list[ReportedFrame]]:
    """Return the stacks that a file of a format has."""
    thrown = report.language_exception
    stacks = [[*thread.frames] for thread in report.threads]
    if thrown is not None and form in ("text", "json", "ips", "apple", "html"):
        stacks.append([*thrown.frames])
    if form in OF_THREADS:
        return stacks
    trees = [[node.frame for node in tree.nodes] for tree in report.trees]
    if form == "sample" and trees:
        return trees
    if report.kind is ReportKind.SPOOL and FORMATS[form].is_view:
        return trees
    return [*stacks, *trees]


def spellings(name: str) -> set[str]:
    """Return a name as it is written in text, JSON and HTML."""
    return {
        name,
        name.strip("[]"),  # of missing frames
        name.replace(";", ":"),
        json.dumps(name)[1:-1],
        escape(name),
        escape(json.dumps(name)[1:-1], quote=False),
    }


def as_spelt(name: str, report: Report, form: str) -> str:
    """Return a name as a format has it: PLCrashReporter strips the underscore of its own names."""
    is_its_own = form == "plcrash" and report.kind is ReportKind.PLCRASH
    return name.removeprefix("_") if is_its_own else name


def missing(report: Report, form: str) -> list[str]:
    """Return the names of functions and images that a format's file lacks."""
    chosen = FORMATS[form]
    (shown,) = as_shown([report], chosen)
    data = chosen.write([shown])
    data = gzip.decompress(data) if form == "pprof" else data
    text = data.decode(errors="surrogateescape")
    wanted: set[str] = set()
    for frame in (frame for stack in stacks_of(shown, form) for frame in stack):
        if frame.symbol is not None:
            wanted.add(as_spelt(frame.symbol.name, shown, form))
        if frame.image is not None and form not in OF_FUNCTIONS:
            image = shown.images[frame.image]
            wanted.add(image.path.rpartition("/")[2] or image.name)
    return sorted(
        name for name in wanted if not any(spelling in text for spelling in spellings(name))
    )


@pytest.mark.parametrize("form", [name for name in FORMATS if name != "svg"])
@pytest.mark.parametrize("kind", REPORT_SAMPLES)
def test_names_of_functions_and_images_are_written(kind: str, form: str) -> None:
    """Also those of images that the report does not list."""
    for data in (REPORT_SAMPLES[kind], without_images(kind)):
        for report in () if data is None else read(data):
            if form not in OF_THREADS or report.threads:
                assert missing(report, form) == []


def test_samples_lose_their_lists() -> None:
    """Else the test above would prove nothing."""
    for kind in REPORT_SAMPLES:
        data = without_images(kind)
        if data is not None:
            assert data != REPORT_SAMPLES[kind]
            assert not any(image.uuid for report in read(data) for image in report.images)


UNLISTED = b"""\
Thread 0 Crashed:
0   libsystem_kernel.dylib        \t0x0000000180a011b0 __pthread_kill + 8
1   Maps                          \t0x0000000100a3f3b4 draw
2   Gone                          \t0x0000000900001234 late (b.swift:12:5)
3   Demo                          \t0x0000000300001234 other + 4
4   Demo                          \t0x0000000100001234 main + 136

Binary Images:
       0x100000000 -        0x10000ffff Demo arm64  <67aed19cdc12316db03ecc2115c58a2a> /a/Demo
"""
"""Images that are not listed, or are listed elsewhere."""


@pytest.mark.parametrize("form", [name for name in FORMATS if name != "svg"])
def test_images_without_a_place_are_named(form: str) -> None:
    """And what is unknown of them is not stated."""
    (report,) = read(UNLISTED)
    assert missing(report, form) == []
    text = FORMATS[form].write([report])
    assert b"0x0 - " not in text
    assert str(0x900001234 - 0x100000000).encode() not in text
    if form == "text":
        assert text.decode().splitlines()[3:8] == [
            "   0  libsystem_kernel.dylib  0x0000000180a011b0  __pthread_kill + 8",
            "   1  Maps                    0x0000000100a3f3b4  draw  [prewalked]",
            "   2  Gone                    0x0000000900001234  late  at b.swift:12  [prewalked]",
            "   3  Demo                    0x0000000300001234  other + 4  [prewalked]",
            "   4  Demo                    0x0000000100001234  main + 136  [prewalked]",
        ]


def test_ips_files_state_no_offset_in_an_image_without_a_place() -> None:
    """The image is the frame's own, and the address is beside the offset that is required."""
    (report,) = read(UNLISTED)
    written = FORMATS["ips"].write([report])
    body = json.loads(written.partition(b"\n")[2])
    frames = body["threads"][0]["frames"]
    names = [body["usedImages"][frame["imageIndex"]]["name"] for frame in frames]
    assert names == ["libsystem_kernel.dylib", "Maps", "Gone", "Demo", "Demo"]
    assert [frame["imageOffset"] for frame in frames] == [0, 0, 0, 0, 0x1234]
    assert [frame.get("address") for frame in frames[::4]] == [0x180A011B0, None]
    (again,) = read(written)
    known = [
        [(one.address, one.offset) for one in each.threads[0].frames] for each in (report, again)
    ]
    assert known[0] == known[1]


@pytest.mark.parametrize("form", ["text", "lldb", "nsthread", "bs", "sample", "stacks-json"])
def test_frames_without_an_image_have_their_functions(form: str) -> None:
    """As of .ips files without images, and of gdb."""
    (gdb,) = read(b"#0  0x0000000000000010 in one ()\n#1  0x0000000000000020 in two () at a.c:3\n")
    assert missing(gdb, form) == []
    data = without_images("ips")
    assert data is not None
    (report,) = read(data)
    assert missing(report, form) == []
    if form in ("text", "sample"):
        assert b"__pthread_kill + 8" in FORMATS[form].write([report])


def test_a_recursion_is_of_one_function() -> None:
    """Frames at one address are folded if their names are equal, and threads are merged if so."""
    lines = (f"{number}   App   0x0000000104560200 f{number % 5}" for number in range(10))
    (report,) = read("\n".join(lines).encode())
    text = FORMATS["text"].write([report]).decode()
    assert [f"f{number}" in text for number in range(5)] == [True] * 5
    assert "the same frame" not in text


def test_kscrash_names_images_that_it_does_not_list() -> None:
    """By their names alone if their load address is that of another image."""
    document = json.loads(REPORT_SAMPLES["kscrash"])
    first, *_ = document["binary_images"]
    frame = {"instruction_addr": 0x7_0000_0010, "object_addr": first["image_addr"]}
    frame |= {"object_name": "Lost", "symbol_name": "lost", "symbol_addr": 0x7_0000_0000}
    document["crash"]["threads"][0]["backtrace"]["contents"].append(frame)
    for report in read(json.dumps(document).encode()):
        read_frame = report.threads[0].frames[-1]
        assert (read_frame.symbol and str(read_frame.symbol), read_frame.offset) == (
            "lost + 16",
            None,
        )
        assert b"Lost" in FORMATS["text"].write([report])


@pytest.mark.parametrize("form", ["apple", "kscrash", "plcrash", "ips", "nsthread", "bs", "lldb"])
def test_names_are_read_back_as_they_are(form: str) -> None:
    """Underscores stay; functions without an offset, also in listed images, are no other text."""
    text = UNLISTED.replace(b"main + 136", b"late.cold.1").replace(b"other + 4", b"_other")
    (report,) = read(text)
    (again,) = read(FORMATS[form].write([report]))
    names = [frame.symbol and frame.symbol.name for frame in again.threads[0].frames]
    assert names == ["__pthread_kill", "draw", "late", "_other", "late.cold.1"]


def test_a_function_without_an_offset_stands_behind_that_of_the_image() -> None:
    """In KSCrash's columns; a place and a placeholder stay what they are."""
    tails = ["(fact())", "(fact() + 3)", "(a.c:9)", "(Missing)"]
    lines = [
        f"{number}   Demo   0x0000000100001234 0x100000000 + 4660 {tail}\n"
        for number, tail in enumerate(tails)
    ]
    (report,) = read(f"Thread 0 Crashed:\n{''.join(lines)}".encode())
    names = [one.symbol and one.symbol.name for one in report.threads[0].frames]
    assert names[:3] == ["fact()", "fact()", None]
    assert names[3] != "Missing"


@pytest.mark.parametrize("form", ["nsthread", "bs", "apple"])
def test_inlined_calls_are_read_back(form: str) -> None:
    """And the frames behind them keep their numbers, also over a gap."""
    (report,) = read(
        b"Thread 0 Crashed:\n"
        b"0   Demo   0x0000000100001230 a() + 1\n"
        b"1   Demo   0x0000000100001234 b() + 1 [inlined]\n"
        b"2   Demo   0x0000000100001234 c() + 4\n"
        b"7   Demo   0x0000000100001238 main + 8\n"
    )
    data = FORMATS[form].write([report])
    (again,) = read(data)
    frames = again.threads[0].frames
    assert [frame.is_inline for frame in frames] == [False, True, False, False]
    assert [frame.symbol and frame.symbol.name for frame in frames] == ["a()", "b()", "c()", "main"]
    if form == "nsthread":
        assert data.decode().splitlines() == [
            "0   Demo                                0x0000000100001230 a() + 1",
            "1   Demo                                0x0000000100001234 b() [inlined] + 0",
            "2   Demo                                0x0000000100001234 c() + 4",
            "... 4 frames not shown",
            "7   Demo                                0x0000000100001238 main + 8",
        ]
