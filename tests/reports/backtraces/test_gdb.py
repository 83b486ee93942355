"""Output of gdb's bt: synthetic lines, and gdb's own values for the frames that it prints."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from machtrace.model.report import Adjustment, Report
from machtrace.reports.backtraces.gdb import parse_frame_line
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from tests.support.reports.logs import GDB

SOURCE = """\
#include <pthread.h>
#include <stdlib.h>
#include <signal.h>
#include <unistd.h>
static inline __attribute__((always_inline)) int innermost(int n, const char *text) {
  if (n == 40) abort();
  return n + text[0];
}
static inline __attribute__((always_inline)) int middle(int n) {
  return innermost(n + 1, "a (text) at x:1") * 2;
}
__attribute__((noinline)) int outer(int n, char letter) { return middle(n) + letter; }
static void handler(int number) { volatile int sum = outer(39, '('); (void)number; (void)sum; }
static void *waits(void *p) { pause(); return p; }
int main(void) {
  pthread_t thread;
  pthread_create(&thread, 0, waits, 0);
  signal(SIGUSR1, handler);
  usleep(10000);
  raise(SIGUSR1);
  return 0;
}
"""
# What gdb knows of the frames, without its text: a line of JSON for each thread.
TOLD = """\
python
import json
for thread in sorted(gdb.selected_inferior().threads(), key=lambda one: one.num):
    thread.switch()
    frame, rows = gdb.newest_frame(), []
    while frame is not None:
        kind = frame.type()
        rows.append([frame.pc(), frame.name(), frame.find_sal().line, kind == gdb.INLINE_FRAME])
        frame = frame.older()
    print("TOLD", json.dumps([thread.ptid[1], rows]))
end
"""


def read(data: bytes) -> Report:
    """Return the one report of a text."""
    (report,) = read_source(ReportSource("bt", data)).reports
    return report


@pytest.mark.parametrize(
    ("line", "name", "arguments", "image", "place"),
    [
        ("#0  main () at a b.c:7", "main", "()", None, ("a b.c", 7)),
        ("#12 0x12 in f (c=40 '(', s=0x1 \") at x:1\") at d.c:3", "f", None, None, ("d.c", 3)),
        ("#1  0x12 in pause () from /lib/a b.so", "pause", "()", "/lib/a b.so", None),
        ("#1  0x12 in ?? ()", None, "()", None, None),
        ("#1  0x12 in ?? () from /lib/c.so", None, "()", "/lib/c.so", None),
        ("#1  0x12 in poll () at /lib/c.so.6", "poll", "()", "/lib/c.so.6", None),
        ("#1  0x12 in  ()", None, "()", None, None),
        # What Python prints of an object is cut at its length, without its last brackets.
        ("#1  0x12 in f (a=<A(b=(1, 2...(truncated)) at a.c:3", "f", None, None, ("a.c", 3)),
        ('#1  0x12 in f (a=0x1 \\"b (c\\") at a.c:3', "f", None, None, ("a.c", 3)),
        (
            "#2  0x12 in std::function<void (int)>::operator()(int) const (this=0x0) at f.h:9",
            "std::function<void (int)>::operator()(int) const",
            "(this=0x0)",
            None,
            ("f.h", 9),
        ),
        (
            "#3  0x12 in (anonymous namespace)::f<(kind)1> (a=<optimized out>) at a.cc:1",
            "(anonymous namespace)::f<(kind)1>",
            "(a=<optimized out>)",
            None,
            ("a.cc", 1),
        ),
        ("#4  <signal handler called>", "<signal handler called>", "", None, None),
        (
            '#5  0x12 in -[Foo bar:] (self=0x1, _cmd=0x2 "bar:") at F.m:3',
            "-[Foo bar:]",
            None,
            None,
            ("F.m", 3),
        ),
    ],
)
def test_frames(
    line: str,
    name: str | None,
    arguments: str | None,
    image: str | None,
    place: tuple[str, int] | None,
) -> None:
    """Brackets, texts and the words between them are read."""
    frame = parse_frame_line(line)
    assert frame is not None
    assert frame.name == name
    if arguments is not None:
        assert frame.arguments == arguments
    assert frame.image == image
    location = frame.location
    assert (None if location is None else (location.path, location.line)) == place


@pytest.mark.parametrize(
    "line",
    [
        "#1 and more",
        "#include <a.h>",
        "# 1  main () at a.c:1",
        "#1  0x",
        "#1  0x0000000000000012 poll (libc.so.6 + 0x12)",  # systemd's
        "#1  0x12 in f (a",
        "#1  0x12 in f (a) and more",
    ],
)
def test_lines_that_are_not_frames(line: str) -> None:
    """Other lines begin so, too."""
    assert parse_frame_line(line) is None


def test_a_whole_text() -> None:
    """Wrapped lines, locals, what gdb shows by itself, a signal's handler."""
    report = read(GDB)
    assert report.process.name == "prog"
    assert report.exception is not None
    assert (report.exception.signal, report.exception.message) == ("SIGABRT", "Aborted")
    waiting, main = report.threads
    assert (waiting.id, waiting.name, waiting.crashed) == (21560, "wai ter", False)
    assert (main.id, main.name, main.crashed) == (21548, None, True)
    assert [image.path for image in report.images] == ["/lib/libc.so.6"]
    assert [
        (frame.symbol and frame.symbol.name, frame.address, frame.adjustment, frame.is_inline)
        for frame in main.frames
    ] == [
        ("raise_it", None, Adjustment.EXACT, False),
        ("innermost", 0x5555555551C1, Adjustment.RETURN, True),
        ("middle", 0x5555555551C1, Adjustment.RETURN, False),
        (
            "std::function<void (int)>::operator()(int) const",
            0x5555555551D4,
            Adjustment.RETURN,
            False,
        ),
        ("<signal handler called>", None, Adjustment.RETURN, False),
        ("waiting", None, Adjustment.EXACT, False),
        ("main", 0x555555555237, Adjustment.RETURN, False),
    ]
    assert main.frames[1].details == {"arguments": '(s=0x1 "a (text) at x:1", n=40)'}
    assert (
        "#0  raise_it (id=<optimized out>) at ./nptl/pthread_kill.c:44" in report.details["lines"]
    )
    assert main.details["lines"] == ['        local = {a = 1, b = "#3"}']


def test_output_of_a_terminal() -> None:
    """Lines wrapped in every style of gdb's, and the pagination prompt, are read."""
    (thread,) = read(
        b"#0  0x01 in one ()\n   from /lib/a b.so\n"
        b"#1  0x02 in\n    two (a=1,\n    b=2) at\n    /src/c.c:5\n"
        b"#2  0x03 in three (a=1,\n"
        b"--Type <RET> for more, q to quit, c to continue without paging--\n"
        b"\tb=2)\n\tat d.c:6\n\tlocal = 3\n"
    ).threads
    assert [frame.symbol and frame.symbol.name for frame in thread.frames] == [
        "one",
        "two",
        "three",
    ]
    places = [
        frame.location and (frame.location.path, frame.location.line) for frame in thread.frames
    ]
    assert places == [None, ("/src/c.c", 5), ("d.c", 6)]
    assert thread.frames[1].details == {"arguments": "(a=1, b=2)"}
    assert thread.details["lines"][1:] == ["\tlocal = 3"]


def test_the_frame_that_gdb_shows_by_itself_and_again() -> None:
    """Where the program stopped is no stack of its own."""
    report = read(
        b"Program terminated with signal SIGSEGV, Segmentation fault.\n#0  0x01 in one ()\n"
        b"(gdb) bt\n#0  0x01 in one ()\n#1  0x02 in two () from C:\\a\\b.dll\n"
    )
    (thread,) = report.threads
    assert thread.crashed
    assert [frame.address for frame in thread.frames] == [1, 2]
    assert report.details["lines"][1:] == ["#0  0x01 in one ()", "(gdb) bt"]
    assert report.images[0].name == "b.dll"


def test_an_indentation_of_its_own() -> None:
    """Other lines with a number sign may have another."""
    (thread,) = read(b"  #1 a thing to do\n\n    #0  one (a=1,\n        b=2) at a.c:3\n").threads
    assert [frame.details["arguments"] for frame in thread.frames] == ["(a=1, b=2)"]


def test_frames_that_kde_leaves_out() -> None:
    """Those of its handler: the first that is shown is what the signal interrupted."""
    (thread,) = read(
        b"Application: A (a), signal: Aborted\n\n Thread 1 (Thread 0x12 (LWP 3)):\n"
        b" [KCrash Handler]\n #6  0x01 in one ()\n #7  0x02 in two ()\n"
    ).threads
    assert thread.id == 3
    assert [(frame.details["number"], frame.adjustment) for frame in thread.frames] == [
        (6, Adjustment.EXACT),
        (7, Adjustment.RETURN),
    ]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[int, list[list[object]]]]:
    """Return gdb's output for a program that aborts in a signal handler, and its own values."""
    gdb = shutil.which("gdb")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if gdb is None or compiler is None:
        pytest.skip("gdb or a C compiler is not installed")
    folder = tmp_path_factory.mktemp("gdb")
    (folder / "prog.c").write_text(SOURCE)
    build = [compiler, "-g", "-O1", "-pthread", folder / "prog.c", "-o", folder / "prog"]
    subprocess.run(build, check=True)
    script = folder / "script"
    script.write_text(TOLD)
    done = subprocess.run(
        [
            *(gdb, "-nx", "-q", "-batch", "-ex", "handle SIGUSR1 nostop noprint pass"),
            *("-ex", "run", "-ex", "thread apply all bt", "-x", script, folder / "prog"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    values = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    if not values:
        pytest.skip("gdb cannot run programs here, or has no Python")
    rows = dict(json.loads(line.removeprefix("TOLD ")) for line in values)
    text = "".join(f"{line}\n" for line in done.stdout.splitlines() if line not in values)
    return text, rows


@pytest.mark.peer
def test_frames_are_those_that_gdb_knows(
    printed: tuple[str, dict[int, list[list[object]]]],
) -> None:
    """Addresses, functions, lines, and what is inlined into what."""
    text, values = printed
    report = read(text.encode())
    assert {thread.id for thread in report.threads} == set(values)
    assert report.exception is not None
    assert report.exception.signal == "SIGABRT"
    inlined = 0
    for thread in report.threads:
        rows = values[thread.id or 0]
        assert len(thread.frames) == len(rows)
        for frame, (address, name, line, is_inline) in zip(thread.frames, rows, strict=True):
            if frame.address is not None:  # gdb leaves it out where a line begins
                assert frame.address == address
            if name is not None and frame.symbol is not None:
                assert frame.symbol.name in (name, "<signal handler called>")
            if frame.location is not None:
                assert frame.location.line == line
            assert frame.is_inline == is_inline
            inlined += frame.is_inline
    assert inlined >= 2  # a C library with debug information has its own
    (crashed,) = (thread for thread in report.threads if thread.crashed)
    names = [frame.symbol.name for frame in crashed.frames if frame.symbol is not None]
    assert names[names.index("innermost") :][:4] == ["innermost", "middle", "outer", "handler"]
