"""Swift's crash reports: both presets, in colour, in logs and as JSON."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from machtrace.errors import FormatError
from machtrace.model.image import BuildId
from machtrace.model.report import Adjustment, Report, ReportedFrame, ReportKind
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.writers import write_reports
from tests.support.reports.logs import SWIFT

HEAD = "*** Program crashed: System trap at 0x0000000000001004 ***\n\nThread 0 crashed:\n\n"
IMAGES = "Images:\n\n0x0000000000001000–0x0000000000002000 {} prog /usr/bin/prog\n"


def read(text: str) -> tuple[Report, ...]:
    """Return the reports in a text."""
    return read_source(ReportSource("log", text.encode())).reports


def frames(lines: str, after: str = "") -> tuple[ReportedFrame, ...]:
    """Return the frames of a thread with these lines."""
    (report,) = read(f"{HEAD}{lines}\n\n{after}")
    (thread,) = report.threads
    return thread.frames


def test_a_whole_crash() -> None:
    """Every part of it is read."""
    (report,) = read_source(ReportSource("log", SWIFT)).reports
    assert report.kind is ReportKind.SWIFT
    assert (report.process.code_type, report.system.os_name) == (
        "x86_64",
        "Linux (Ubuntu 24.04.4 LTS)",
    )
    exception = report.exception
    assert exception is not None
    assert (exception.signal, exception.message, exception.address) == (
        "SIGSEGV",
        "Bad pointer dereference",
        4,
    )
    first, second = report.threads
    assert (first.name, first.crashed, second.name, second.crashed) == ("prog", True, None, False)
    assert [
        (frame.address, frame.image, frame.offset, frame.adjustment, frame.is_inline)
        for frame in first.frames
    ] == [
        (0x55D1CFC75746, 0, 0x5746, Adjustment.EXACT, True),
        (0x55D1CFC75746, 0, 0x5746, Adjustment.EXACT, False),
        (0x55D1CFC75760, 0, 0x5760, Adjustment.RETURN, False),
        (0x55D1CFC75800, 0, 0x5800, Adjustment.EXACT, False),
        (None, None, None, Adjustment.UNKNOWN, False),
        (0x7F8605975117, 1, 0x75117, Adjustment.RETURN, False),
    ]
    assert [frame.symbol and frame.symbol[:2] for frame in first.frames] == [
        ("Swift runtime failure: overflow", None),
        ("closure #1 in level(at:)", 37),
        ("thunk for @callee_guaranteed () -> ()", 2),
        ("static Main.main()", None),
        None,
        None,
    ]
    places = [frame.location for frame in first.frames if frame.location is not None]
    assert [(place.path, place.line, place.column) for place in places] == [
        ("/<generated>", None, None),
        ("/a at b.c", 39, 15),
        ("/src/main.swift", 3, None),
    ]
    assert [frame.details for frame in first.frames] == [
        {"attributes": ["system"]},
        {},
        {"attributes": ["thunk"]},
        {"attributes": ["async"]},
        {"omitted": None},
        {"attributes": ["system"], "number": 9},
    ]
    assert (second.frames[0].image, second.frames[0].offset) == (1, 0x75100)
    assert first.registers is not None
    assert [(register.name, register.value) for register in first.registers.registers] == [
        ("rax", 0),
        ("rsp", 0x7FFDB22578B0),
        ("rflags", 0x246),
        ("cs", 0x33),
        ("fs", 0),
        ("gs", 0),
    ]
    assert [(image.name, image.path, image.uuid, image.size) for image in report.images] == [
        ("my prog", "/src/my prog", None, 0xFFF0),
        (
            "libc.so.6",
            "/lib/libc.so.6",
            BuildId(bytes.fromhex("8e9fd827446c24067541ac5390e6f527")),
            0x1AF5CF,
        ),
        ("libm.so.6", "/lib/libm.so.6", BuildId(bytes.fromhex("446c24067541ac5390")), 0xAF5CF),
    ]
    assert report.details == {
        "lines before": [
            "About to crash",
            "*** Signal 11: Backtracing from 0x55d1cfc75746... done ***",
        ],
        "lines": ["Images (19 omitted):", "Backtrace took 0.05s"],
    }


def test_output_of_a_terminal() -> None:
    """The preset *friendly* prints colours and source lines, and no addresses."""
    (report,) = read(
        "\r\x1b[0K💣 Program crashed: Signal 4: Backtracing from 0x7fea78ca09fc...\r\x1b[0K"
        "💣 \x1b[91mProgram crashed: Illegal instruction at 0x00000001000\x1b[0m\n\n"
        "Thread 0 \x1b[1mcrashed\x1b[0m:\n\n"
        "0 one(two:) + 404 in my app at /src/a b.swift:4:15\n\n"
        "     3│   let x = 3 in 4\n     4│   x.y = 42  \n      │      ▲\n     5│ }\n\n"
        "1 main + 12 in my app at /src/a b.swift:11:1\n\n    11 │ crash()\n\n...\n\n"
        "Backtrace took 0.27s\n\nPress space to interact, D to debug, or any other key to quit\n"
    )
    (thread,) = report.threads
    named = [frame for frame in thread.frames if frame.symbol is not None]
    assert [frame.symbol[:2] for frame in named] == [("one(two:)", 404), ("main", 12)]
    assert [frame.location.line for frame in named] == [4, 11]
    assert [frame.image for frame in thread.frames] == [0, 0, None]
    assert report.images[0].name == "my app"
    assert report.exception.signal == "SIGILL"
    assert "     4│   x.y = 42" in thread.details["lines"]


@pytest.mark.parametrize(
    ("line", "name", "offset", "image", "path"),
    [
        ("closure #1 in f() + 4 in prog", "closure #1 in f()", 4, "prog", None),
        (
            "f(at:in:) in prog at /a in b/c at d.swift:3:4",
            "f(at:in:)",
            None,
            "prog",
            "/a in b/c at d.swift",
        ),
        ("f() - 16 in prog", "f()", -16, "prog", None),
        (
            "operator + infix (A, B) -> C in prog",
            "operator + infix (A, B) -> C",
            None,
            "prog",
            None,
        ),
        ("<unknown> in prog", None, None, "prog", None),
        ("what in f(a name)", "what in f(a name)", None, None, None),
    ],
)
def test_names_with_the_words_that_part_them(
    line: str, name: str | None, offset: int | None, image: str | None, path: str | None
) -> None:
    """*in* and *at* are in names of functions and of files, too."""
    (report,) = read(f"{HEAD}0 0x0000000000001004 {line}\n\n{IMAGES.format('<no build ID>')}")
    (frame,) = report.threads[0].frames
    assert (frame.symbol and frame.symbol.name) == name
    assert (frame.symbol and frame.symbol.offset) == offset
    assert (frame.location and frame.location.path) == path
    if image is not None:
        assert report.images[frame.image].name == image
    else:
        assert frame.image == 0  # by its address


def test_a_terminal_without_room() -> None:
    """Where a frame is in the source stands below it; a call of nothing is at no address."""
    null, first, second = frames(
        "0 null\n1 f() + 5 in a.dll\n  at Sources\\a b.swift:8:17\n\n    8│   at once\n"
        "  at once\n\n2 g() + 9 in a.dll\n"
    )
    assert (null.address, null.symbol) == (0, None)
    assert first.location is not None
    assert (first.location.path, first.location.line) == ("Sources\\a b.swift", 8)
    assert second.location is None
    (report,) = read(f"{HEAD}1 f() in a.dll\n\nThread 1:\n\n  at b.swift:8:17\n")
    assert report.threads[1].details == {"lines": ["  at b.swift:8:17"]}


def test_a_crash_of_the_compiler() -> None:
    """LLVM writes its stack before Swift's runtime does."""
    dump, crash = read(
        "Stack dump:\n0.\tProgram arguments: swift-frontend\n"
        "#0 0x0000000000001234 f(int) (/usr/bin/swift-frontend+0x234)\n"
        f"#1 0x0000000000001250 main a.cpp:1:2\n\n{HEAD}0 0x1234 f(int) in swift-frontend\n"
    )
    assert (dump.kind, crash.kind) == (ReportKind.SANITIZER, ReportKind.SWIFT)
    assert [len(report.threads[0].frames) for report in (dump, crash)] == [2, 1]
    assert crash.details == {}


def test_identifiers_of_macos_are_uuids() -> None:
    """Elsewhere 16 bytes are a build-id, as lld makes them."""
    digits = "6fdbb104c032301189bae26d5506e11a"
    mac = HEAD.replace("***\n", "***\n\nPlatform: arm64 macOS 26.1 (25B64)\n")
    (report,) = read(f"{mac}0 0x1004 f() in prog\n\n{IMAGES.format(digits)}")
    assert report.images[0].uuid == UUID(digits)
    linux = mac.replace("macOS 26.1 (25B64)", "Linux (Debian 12)")
    (report,) = read(f"{linux}0 0x1004 f() in prog\n\n{IMAGES.format(digits)}")
    assert report.images[0].uuid == BuildId(bytes.fromhex(digits))


def test_every_crash_of_a_log() -> None:
    """Each is a report; what was written before it goes with it, and nothing is lost."""
    crash = f"*** Signal 5: Backtracing from 0x1004... done ***\n\n{HEAD}0 0x1004 f() in prog\n"
    first, second = read(f"starting\n{crash}\nBacktrace took 0.01s\n\nagain\n{crash}exited\n")
    assert first.details["lines before"][0] == "starting"
    assert "again" in first.details["lines"]
    assert [len(one.threads) for one in (first, second)] == [1, 1]
    assert second.threads[0].details["lines"] == ["exited"]


def test_names_of_crashes_are_not_crashes() -> None:
    """A log that only speaks of one is none."""
    with pytest.raises(FormatError, match="unknown kind of report"):
        read("we saw *** Program crashed: Bad pointer dereference at 0x4 *** yesterday\n")


DOCUMENT = {
    "timestamp": "2025-02-27T15:35:42.000000Z",
    "kind": "crashReport",
    "description": "Bad pointer dereference",
    "faultAddress": "0x0000000000000004",
    "platform": "Linux (Ubuntu 24.04.4 LTS)",
    "architecture": "x86_64",
    "threads": [
        {
            "name": "prog",
            "crashed": True,
            "registers": {"rax": "0x0000000000000007", "odd": "none"},
            "frames": [
                {
                    "kind": "programCounter",
                    "address": "0x0000000000001004",
                    "symbol": "$s5Crash6level5yyF",
                    "offset": 4,
                    "description": "level5() + 4",
                    "image": "prog",
                    "sourceLocation": {"file": "/a.swift", "line": 51, "column": 15},
                },
                {"kind": "returnAddress", "address": "0x1010", "inlined": True, "system": True},
                {"kind": "asyncResumePoint", "address": "0x1020", "image": "prog"},
                {"kind": "omittedFrames", "count": 7},
                {"kind": "truncated"},
                {"kind": "new", "address": 3},
            ],
        },
        {"frames": []},
    ],
    "capturedMemory": {"0x1": "00ff"},
    "omittedImages": 3,
    "images": [
        {
            "name": "prog",
            "buildId": "446c24067541ac5390",
            "path": "/usr/bin/prog",
            "baseAddress": "0x0000000000001000",
            "endOfText": "0x0000000000002000",
        }
    ],
    "backtraceTime": 0.05,
}


def test_a_crash_as_json() -> None:
    """The same model; other keys stay in the details."""
    (report,) = read(json.dumps(DOCUMENT))
    assert report.kind is ReportKind.SWIFT
    assert report.incident.time == "2025-02-27T15:35:42.000000Z"
    assert (report.exception.signal, report.exception.address) == ("SIGSEGV", 4)
    assert report.images[0].uuid == BuildId(bytes.fromhex("446c24067541ac5390"))
    first, second = report.threads
    assert second.frames == ()
    assert [(frame.offset, frame.adjustment, frame.is_inline) for frame in first.frames] == [
        (4, Adjustment.EXACT, False),
        (16, Adjustment.RETURN, True),
        (32, Adjustment.EXACT, False),
        (None, Adjustment.UNKNOWN, False),
        (None, Adjustment.UNKNOWN, False),
        (None, Adjustment.EXACT, False),
    ]
    assert first.frames[0].symbol[:2] == ("$s5Crash6level5yyF", 4)
    assert first.frames[0].location.line == 51
    assert [frame.details for frame in first.frames[1:]] == [
        {"attributes": ["system"]},
        {"attributes": ["async"]},
        {"omitted": 7},
        {"omitted": None},
        {"kind": "new", "address": 3},
    ]
    assert first.registers.registers[0][:2] == ("rax", 7)
    assert first.details == {"registers": {"odd": "none"}}
    assert report.details == {
        "capturedMemory": {"0x1": "00ff"},
        "omittedImages": 3,
        "backtraceTime": 0.05,
    }


def test_a_log_of_crashes_as_json() -> None:
    """One a line, as collectors of logs keep them."""
    line = json.dumps(DOCUMENT)
    assert len(read(f"{line}\n{line}\n")) == 2


@pytest.mark.parametrize("form", ["apple", "ips", "json"])
def test_build_ids_come_back(form: str) -> None:
    """Formats that were made for UUIDs keep them as well."""
    (report,) = read(json.dumps(DOCUMENT))
    (again,) = read(write_reports([report], form).decode())
    assert again.images[0].uuid == report.images[0].uuid
