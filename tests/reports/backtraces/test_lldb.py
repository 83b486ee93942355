"""Output of lldb's bt: marks, inlined calls, headings of several versions."""

from __future__ import annotations

import pytest

from machtrace.model.report import Adjustment, Report, ReportedFrame
from machtrace.reports.backtraces.lldb import read
from machtrace.reports.source import ReportSource
from tests.support.reports.variants import OLD_LLDB


def bt(text: str) -> Report:
    """Return the one report of a text."""
    (report,) = read(ReportSource("bt", text.encode()))
    return report


def frame(rest: str) -> ReportedFrame:
    """Return the frame of a line, behind its address."""
    (thread,) = bt(f"    frame #0: 0x0000000100003f50 {rest}").threads
    return thread.frames[0]


@pytest.mark.parametrize(
    ("rest", "name", "offset", "place", "marks"),
    [
        ("a.out`main + 16", "main", 16, None, None),
        ("a.out`main(argc=1) at a.c:19:7", "main(argc=1)", None, ("a.c", 19, 7), None),
        ("a.out`main at a.c:19 [opt]", "main", None, ("a.c", 19, None), "[opt]"),
        (
            "a.out`f + 4 at a b.c:0 [opt] [artificial]",
            "f",
            4,
            ("a b.c", None, None),
            "[opt] [artificial]",
        ),
        ('a.out`f[abi:cxx11](s="at x:1") + 4', 'f[abi:cxx11](s="at x:1")', 4, None, None),
        ("my app`-[A b:c:] at A.m:3:1", "-[A b:c:]", None, ("A.m", 3, 1), None),
        (
            "a`std::vector<int, std::allocator<int> >::at(n=1) + 8",
            "std::vector<int, std::allocator<int> >::at(n=1)",
            8,
            None,
            None,
        ),
        (
            "a`closure #1 in f() [async] at F.swift:4:5",
            "closure #1 in f() [async]",
            None,
            ("F.swift", 4, 5),
            None,
        ),
        ("a`___lldb_unnamed_symbol123 + 44", "___lldb_unnamed_symbol123", 44, None, None),
    ],
)
def test_frames(
    rest: str,
    name: str,
    offset: int | None,
    place: tuple[str, int | None, int | None] | None,
    marks: str | None,
) -> None:
    """Names have blanks and brackets; columns are there or not; line 0 is none."""
    parsed = frame(rest)
    assert parsed.symbol is not None
    assert (parsed.symbol.name, parsed.symbol.offset) == (name, offset)
    location = parsed.location
    assert (location and (location.path, location.line, location.column)) == place
    assert parsed.details.get("marks") == marks


def test_an_image_alone_is_no_function() -> None:
    """Lldb prints no back-quote where it knows none."""
    (thread,) = (report := bt("  frame #0: 0x0000000100003f50 My App (2)")).threads
    assert thread.frames[0].symbol is None
    assert [image.name for image in report.images] == ["My App (2)"]


def test_inlined_calls_share_the_address_that_was_interrupted() -> None:
    """All up to the function that they are in; the next one is a caller."""
    (thread,) = bt(
        "* thread #1, queue = 'a\\'b', stop reason = signal SIGABRT\n"
        "  * frame #0: 0x10 a`f [inlined] g(x=5) at a.c:3:4 [opt]\n"
        "    frame #1: 0x10 a`f(p=0) at a.c:9:4 [opt]\n"
        "    frame #2: 0x20 a`h [inlined] i at a.c:13:4 [opt]\n"
        "    frame #3: 0x20 a`h at a.c:19:4 [opt]\n"
    ).threads
    assert [one.is_inline for one in thread.frames] == [True, False, True, False]
    assert [one.adjustment for one in thread.frames] == [
        Adjustment.EXACT,
        Adjustment.EXACT,
        Adjustment.RETURN,
        Adjustment.RETURN,
    ]
    assert thread.frames[0].details["inlined into"] == "f"
    assert thread.queue == "a\\'b"


def test_a_part_of_a_stack_has_no_interrupted_frame() -> None:
    """``thread backtrace --start 10`` begins with callers."""
    (thread,) = bt("    frame #10: 0x10 a`f\n    frame #11: 0x20 a`g\n").threads
    assert {one.adjustment for one in thread.frames} == {Adjustment.RETURN}
    assert [one.details["number"] for one in thread.frames] == [10, 11]


def test_threads_begin_with_headings_or_with_their_first_frame() -> None:
    """Lines in between are stored with the thread before them."""
    report = bt(
        "(lldb) bt all\n  thread #7, name = 'w', tid = 0x1f03\n    frame #0: 0x1 a`f\n"
        "    ... 3 more\n    frame #0: 0x2 a`g\n"
    )
    first, second = report.threads
    assert (first.name, first.id, first.details) == (
        *("w", 0x1F03),
        {"lines": ["    ... 3 more"], "number": 7},
    )
    assert (second.index, second.details) == (1, {})
    assert report.details == {"lines": ["(lldb) bt all"]}


def test_numbers_of_threads_may_begin_with_zeros() -> None:
    """They are decimal nevertheless."""
    (thread,) = bt("* thread #1, tid = 081\n    frame #00: 0x1 a`f\n").threads
    assert (thread.id, len(thread.frames)) == (81, 1)


def test_the_stop_reason_of_a_thread_is_the_exception() -> None:
    """The rest of an old heading is stored too."""
    report = bt(OLD_LLDB.decode())
    assert report.exception is not None
    assert (report.exception.type, report.exception.address) == ("EXC_BAD_ACCESS", 16)
    (thread,) = report.threads
    assert (thread.id, thread.queue, thread.crashed) == (0x1C03, "com.apple.main-thread", True)
    assert thread.details["heading"] == "0x0000000100000f50 a.out`main + 16 at main.c:5"
    assert bt("* thread #1, stop reason = breakpoint 1.1\nframe #0: 0x1 a`f").exception is None


def test_the_banner_of_a_stop_is_not_a_stack() -> None:
    """A debugger shows the frame where a process stopped, before its stacks are requested."""
    stacks = (
        "* thread #1, name = 'app', stop reason = signal SIGSTOP\n"
        "  * frame #0: 0x10 libc.so.6`read + 16\n"
        "    frame #1: 0x20 app`main + 4\n"
        "  thread #2, name = 'worker'\n"
        "    frame #0: 0x30 libc.so.6`poll + 16\n"
    )
    banner = (
        "Process 4711 stopped\n"
        "* thread #1, name = 'app', stop reason = signal SIGSTOP\n"
        "    frame #0: 0x10 libc.so.6`read + 16\n"
        "libc.so.6`read:\n"
        "->  0x10 <+16>: cmpq   $-0x1000, %rax\n"
    )
    report = bt(f"{banner}(lldb) bt all\n{stacks}")
    assert report.threads == bt(stacks).threads
    assert report.details["lines"] == [*banner.splitlines(), "(lldb) bt all"]


def test_a_stack_of_one_frame_is_not_a_banner() -> None:
    report = bt("* thread #1\n  * frame #0: 0x10 a`f\n  thread #2\n    frame #0: 0x10 a`f\n")
    assert [thread.index for thread in report.threads] == [0, 1]
