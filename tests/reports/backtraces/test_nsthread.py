"""Lines of callStackSymbols and of backtrace_symbols, as logs have them."""

from __future__ import annotations

from uuid import UUID

import pytest

from machtrace.errors import FormatError
from machtrace.model.report import Report
from machtrace.model.symbol import SourceLocation
from machtrace.reports.backtraces.nsthread import read_line
from machtrace.reports.crash.frames import numbered
from machtrace.reports.crash.writer import crash_text
from machtrace.reports.kscrash.text import kscrash_text
from machtrace.reports.plcrash.text import plcrash_text
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.reports.stacks.own_text import backtrace_text
from tests.support.reports.variants import SWIFT_ARRAY

LONG = "A Framework With A Name Of More Than 35"
REDACTED = "A5D3B725-78C3-3E19-A765-CCEB22355093"


def line(number: int, image: str, address: int, name: str, offset: int) -> str:
    """As Apple's Libc prints it: the image's name is cut where its column ends."""
    return f"{number:<4d}{image[:35]:<35s} 0x{address:016x} {name} + {offset}"


def stacks(text: str) -> Report:
    """Return the one report of a text."""
    (report,) = read_source(ReportSource("log", text.encode())).reports
    return report


def test_offsets_are_from_the_image_where_no_symbol_is_known() -> None:
    """The image's name stands in the symbol's place then, whole or cut."""
    report = stacks(
        line(0, "App", 0x104560200, "App", 512) + "\n" + line(1, "App", 0x104560304, "f", 4)
    )
    first, second = report.threads[0].frames
    assert (first.symbol, first.offset) == (None, 512)
    assert report.images[0].load_address == 0x104560000
    assert (second.symbol and second.symbol.offset, second.offset) == (4, 0x304)


def test_a_redacted_name_is_the_images_uuid() -> None:
    """With the offset from the image it can be looked up anywhere."""
    report = stacks(
        line(0, "libsystem_kernel.dylib", 0x180000148, "read", 8)
        + "\n"
        + line(1, "libsystem_kernel.dylib", 0x180000048, REDACTED, 72)
    )
    first, second = report.threads[0].frames
    assert second.symbol is None
    assert second.offset == 72
    assert [image.uuid for image in report.images] == [UUID(REDACTED)]
    assert first.offset == 0x148


def test_cut_names_are_completed_from_other_lines() -> None:
    """Both lines are of one image."""
    report = stacks(
        line(0, LONG, 0x104560304, "f", 4) + "\n" + line(1, LONG, 0x104560200, LONG, 512)
    )
    assert [image.name for image in report.images] == [LONG]
    assert [frame.offset for frame in report.threads[0].frames] == [0x304, 512]


def test_cut_names_that_could_be_several_stay_cut() -> None:
    """Nobody knows which it is."""
    other = LONG[:35] + "other"
    report = stacks(
        "\n".join(
            [
                line(0, LONG, 0x104560304, "f", 4),
                line(1, LONG, 0x104560200, LONG, 512),
                line(2, other, 0x204560200, other, 512),
            ]
        )
    )
    assert [image.name for image in report.images] == [LONG[:35], LONG, other]


def test_numbers_that_begin_again_are_another_stack() -> None:
    """Lines in between are stored with the second."""
    first = line(0, "App", 0x104560200, "f", 2)
    report = stacks(f"first\n{first}\nthen\n{first}\nlast\n")
    assert [thread.details.get("lines") for thread in report.threads] == [["first"], ["then"]]
    assert report.details == {"lines": ["last"]}


def test_swift_prints_an_array_in_one_line() -> None:
    """Each string of it is a frame."""
    report = stacks(SWIFT_ARRAY.decode())
    (thread,) = report.threads
    assert [frame.symbol and frame.symbol.name for frame in thread.frames] == [
        *("$s3App3fooyyF", "start"),
    ]
    assert thread.details == {"lines": ["symbols:"]}


@pytest.mark.parametrize(
    "form", ['["{0}", "{1}"]', '{{"stack":"{0}\\n{1}"}}', '(\n    "{0}",\n    "{1}"\n)']
)
def test_arrays_of_all_languages_are_the_same(form: str) -> None:
    """Swift, JSON and Objective-C print them differently."""
    lines = (line(0, "App", 0x104560200, "-[Foo bar:]", 2), line(1, "App", 0x104560300, "main", 2))
    assert [frame.address for frame in stacks(form.format(*lines)).threads[0].frames] == [
        *(0x104560200, 0x104560300),
    ]


@pytest.mark.parametrize(
    ("text", "image", "address", "symbol", "offset", "image_offset"),
    [
        ("./prog(func+0x12) [0x4005d4]", "./prog", 0x4005D4, "func", 0x12, None),
        ("./prog() [0x4005d4]", "./prog", 0x4005D4, None, None, None),
        (
            "/lib/libc.so.6(+0x29d90) [0x7f0000029d90]",
            "/lib/libc.so.6",
            0x7F0000029D90,
            None,
            None,
            0x29D90,
        ),
        ("[0x4005d4]", "", 0x4005D4, None, None, None),
        ("0x4005d4 <main+0x14> at ./prog", "./prog", 0x4005D4, "main", 0x14, None),
        ("0   App  0x0001f3a4 main + 16", "App", 0x1F3A4, "main", 16, None),
        ("0   App  0x0001f3a4 main + 010", "App", 0x1F3A4, "main", 10, None),
        ("0   ???  0x0000000000000010 0x0 + 16", "", 16, None, None, None),
        (
            "3 App 0x0000000104560200 operator+(A const&, int) + 8",
            "App",
            0x104560200,
            "operator+(A const&, int)",
            8,
            None,
        ),
    ],
)
def test_lines(
    text: str,
    image: str,
    address: int,
    symbol: str | None,
    offset: int | None,
    image_offset: int | None,
) -> None:
    """Apple's Libc in both widths, glibc and libexecinfo print them differently."""
    parsed = read_line(text)
    assert parsed is not None
    assert (parsed.image, parsed.address) == (image, address)
    assert (parsed.symbol, parsed.symbol_offset, parsed.image_offset) == (
        symbol,
        offset,
        image_offset,
    )


def test_lines_of_crash_reports_may_stand_alone() -> None:
    """Where an image begins and how far in it the frame is are no symbol; a place may follow."""
    report = stacks(
        "0   libstatusbar.dylib   0x01997c1c 0x1995000 + 11292\n"
        "1   Demo                 0x0000000101682194 run() + 16 (Demo.swift:31)\n"
        "2   Demo                 0x0000000101682200 0x101680000 + 1\n"
        "3   ???                  0x1862f694c (Missing)\n"
    )
    bar, run, other, missing = report.threads[0].frames
    assert (bar.symbol, bar.offset, report.images[0].load_address) == (None, 11292, 0x1995000)
    assert run.symbol is not None
    assert (run.symbol.name, run.symbol.offset) == ("run()", 16)
    assert run.location == SourceLocation("Demo.swift", 31)
    assert other.symbol is not None  # the numbers do not add up
    assert (missing.address, missing.symbol, missing.image) == (0x1862F694C, None, None)


@pytest.mark.parametrize(
    ("tail", "symbol", "offset", "location"),
    [
        ("", None, None, None),
        ("third()", "third()", None, None),
        ("third() (b.swift:12)", "third()", None, SourceLocation("b.swift", 12)),
        ("third() (b.swift:12:5)", "third()", None, SourceLocation("b.swift", 12, 5)),
        ("third() + 1 (b.swift:12:5)", "third()", 1, SourceLocation("b.swift", 12, 5)),
        ("f() + 4388917356 (b.swift:4388917356)", "f()", 4388917356, SourceLocation("b.swift")),
        ("third() (in MyApp)", "third()", None, None),
        ("third() [inlined]", "third()", None, None),
        ("[inlined]", None, None, None),
        ("(Missing)", None, None, None),
        ("(Missing UUID ea3f0cf6e97c3b9bb0ab3dd5cdb2fb0d)", None, None, None),
        ("f(g(), [Int])", "f(g(), [Int])", None, None),
        ("operator[]", "operator[]", None, None),
        ("what is this", "what is this", None, None),
    ],
)
@pytest.mark.parametrize("address", ["0x0000000103a3d06c", "0x1f3a4"])
@pytest.mark.parametrize(
    "form", ["{0}\n{1}\n{2}", '["{0}", "{1}", "{2}"]', "(\n\t{0}\n\t{1}\n\t{2}\n)"]
)
def test_number_image_and_address_make_a_frame(
    form: str,
    address: str,
    tail: str,
    symbol: str | None,
    offset: int | None,
    location: SourceLocation | None,
) -> None:
    """The tail may be any; it stays and is written again."""
    odd = f"1   MyApp                               {address} {tail}".rstrip()
    first, last = line(0, "App", 0x104560200, "f", 2), line(2, "App", 0x104560300, "main", 2)
    report = stacks(form.format(first, odd, last))
    (thread,) = report.threads
    frame = thread.frames[1]
    assert (len(thread.frames), report.warnings) == (3, ())
    assert frame.image is not None
    assert (report.images[frame.image].name, frame.address) == ("MyApp", int(address, 16))
    assert (frame.symbol and frame.symbol.name, frame.symbol and frame.symbol.offset) == (
        symbol,
        offset,
    )
    assert (frame.location, frame.is_inline) == (location, "[inlined]" in tail)
    written = " ".join(crash_text(report).split()).replace("??? [", "[")
    assert f" {hex(int(address, 16))} {tail.removesuffix(' (in MyApp)')}".rstrip() in written


def test_the_uuid_of_a_missing_file_is_the_image_s() -> None:
    """As Crashlytics prints it."""
    report = stacks(
        "0   MyApp   0x0000000103a3d06c (Missing UUID ea3f0cf6e97c3b9bb0ab3dd5cdb2fb0d)\n"
    )
    assert [image.uuid for image in report.images] == [UUID("ea3f0cf6e97c3b9bb0ab3dd5cdb2fb0d")]


@pytest.mark.parametrize(
    "text",
    [
        "0   MyApp                0x0000000103a3d06c third()",
        "0 MyApp 0x103a3d06c third()\n\n1 MyApp 0x103a3d070",
        "*** First throw call stack:\n(\n\t0 A 0x103a3d06c f()\n\t1 B 0x103a3d070 g()\n)",
    ],
)
def test_stacks_without_any_usual_line(text: str) -> None:
    """They begin with 0, and have several lines or columns."""
    frames = stacks(text).threads[0].frames
    assert [frame.address for frame in frames] == [0x103A3D06C, 0x103A3D070][: len(frames)]
    assert len(frames) == text.count("0x")


@pytest.mark.parametrize(
    "text",
    [
        "0 bytes at 0x12345678 leaked\n12 items 0x55 x\n",
        "5 threads at 0x1000 failed\n",
        "  2    Thread 0x7ffff7d89700 (LWP 124) poll ()\n  3    Thread 0x7ffff7d88700 (LWP 5) f ()",
    ],
)
def test_lines_of_logs_are_no_frames(text: str) -> None:
    """Although they have a number, a name and an address."""
    with pytest.raises(FormatError, match="unknown kind"):
        stacks(text)
    stack = line(0, "App", 0x104560200, "f", 2)
    (thread,) = stacks(f"{text}\n{stack}\n").threads
    assert len(thread.frames) == 1
    assert thread.details["lines"] == text.strip("\n").split("\n")


FIRST, SECOND = "0 MyApp 0x103ef8700 first() + 1", "1 MyApp 0x103a3d06c second() + 3"


@pytest.mark.parametrize(
    ("lines", "numbers"),
    [
        (
            (FIRST, SECOND, "...", "7 Kit 0x103a3d06c third()", "8 Kit 0x103a3d06d four"),
            [0, 1, 7, 8],
        ),
        ((FIRST, SECOND, "", "7 Kit 0x103a3d06c third()"), [0, 1, 7]),
        ((FIRST, SECOND, "7 Kit 0x103a3d06c third()"), [0, 1, 7]),
        ((FIRST, SECOND, "1 Kit 0x103a3d071 third()", "2 Kit 0x103a3d06d four"), [0, 1, 1, 2]),
        (("3 A 0x103ef8700 a()", "4 A 0x103a3d06c b()", "5 Kit 0x103a3d06d c()"), [3, 4, 5]),
        ((FIRST, "1 Kit 0x1f3a4 middle()", "2 MyApp 0x103a3d06c main + 3"), [0, 1, 2]),
        ((FIRST, "1   Kit                  0x1f3a4 middle()"), [0, 1]),
        ((FIRST, SECOND, "2 Kit 0x103a3d06c 64"), [0, 1, 2]),
    ],
)
def test_unusual_frames_after_gaps(lines: tuple[str, ...], numbers: list[int]) -> None:
    """Also where the start is missing, or the numbers begin again."""
    report = stacks("\n".join(lines))
    printed = [[*numbered(thread.frames)] for thread in report.threads]
    assert [number for frames in printed for number, _ in frames] == numbers
    is_whole = numbers == [*range(len(numbers))]
    assert [warning.rpartition(": ")[2][:8] for warning in report.warnings] == (
        [] if is_whole else ["no frame"]
    )
    names = [frame.symbol.name for frames in printed for _, frame in frames if frame.symbol]
    assert len(names) == len(numbers) - ("64" in lines[-1].split())


@pytest.mark.parametrize(
    "text",
    [
        "0 file 0x1234 changed\n1 file 0x1235 changed\n2 files 0x1236 removed",
        "0 apple 0x1000 64\n1 banana 0x2000 32",
        "0   apple   0x1000   64\n1   banana   0x2000   32",
        "0 .text 0x1000 0x200 AX",
        "0 .text 0x100001000 0x200 AX\n1 .data 0x100002000 0x200 AX",
        "0 0000 0x48656c6c 0x6f20576f\n1 0008 0x48656c6c 0x6f20576f",
    ],
)
def test_tables_are_no_frames(text: str) -> None:
    """Although their rows are numbered."""
    with pytest.raises(FormatError, match="unknown kind"):
        stacks(text)


def test_lines_below_a_stack_that_are_not_taken_are_named() -> None:
    """They have the next numbers, but neither columns nor likely addresses."""
    below = ["2 files 0x1234 changed", "3 retries 0xff left", "12 items 0x10 leaked"]
    report = stacks("\n".join([FIRST, SECOND, *below]))
    assert [len(thread.frames) for thread in report.threads] == [2]
    assert report.details["lines"] == below
    (warning,) = report.warnings
    assert warning.endswith(
        ": '2 files 0x1234 changed', '3 retries 0xff left', '12 items 0x10 leaked'"
    )
    for likely in ("1 Kit 0x103a3d070 third()", "and so on\n7 Kit 0x103a3d070 third()"):
        (warning,) = stacks(f"{FIRST}\n{SECOND}\n{likely}").warnings
        assert warning.startswith("lines like frames, but in no stack: ")


def test_a_gap_in_the_numbers_is_a_warning() -> None:
    """And frames keep their numbers."""
    lines = [line(number, "App", 0x104560200 + number, f"f{number}", 2) for number in (0, 1, 3, 7)]
    report = stacks("\n".join([*lines, line(1, "App", 0x104560200, "g", 2)]))
    assert [len(thread.frames) for thread in report.threads] == [4, 1]
    assert report.warnings == (
        "thread 0: no frames 2, 4–6 in the text",
        "thread 1: no frame 0 in the text",
    )
    text = backtrace_text(report)
    assert "   …  1 frame in between\n   3  App  0x0000000104560203  f3 + 2" in text
    for write in (crash_text, kscrash_text, plcrash_text):
        written = write(report)
        assert "\n3   App" in written
        assert "\n7   App" in written
    stated = stacks("\n".join([*lines[:2], "... 1 frames not shown", lines[2]]))
    assert stated.warnings == ()


def test_crashlytics_prints_offsets_in_images() -> None:
    """In place of addresses, which are above them on Apple's 64-bit systems."""
    report = stacks(
        "# Crashlytics - Stack trace\n\nCrashed: main\n"
        "0  Kit   0x12d12c (Missing UUID ea3f0cf6e97c3b9bb0ab3dd5cdb2fb0d)\n"
        "1  App   0x8a54 run() + 27 (App.swift:27)\n"
        "2  App   0x0000000103a3d06c main + 4\n"
    )
    assert [(frame.address, frame.offset) for frame in report.threads[0].frames] == [
        (None, 0x12D12C),
        (None, 0x8A54),
        (0x103A3D06C, None),
    ]
