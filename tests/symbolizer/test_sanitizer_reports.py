"""Reports of sanitizers: unsymbolized ones get the names that the sanitizers print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from machtrace.model.image import BuildId
from machtrace.model.report import Adjustment, Report, ReportedThread
from machtrace.reports.backtraces.sanitizer import parse_frame_line
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.symbolizer.report_names import ReportNames
from machtrace.symbolizer.report_symbolicator import symbolicate_reports
from tests.support.reports.logs import SANITIZER

SOURCE = """\
#include <stdlib.h>
static int depth;
__attribute__((noinline)) int use(int *p) {
  return p[1];
}
static inline __attribute__((always_inline)) int wraps(int *p) {
  return use(p) + 1;
}
__attribute__((noinline)) int again(int *p) {
  if (++depth < 4)
    return again(p) + 1;
  return wraps(p) * 2;
}
int main(void) {
  int *p = malloc(8);
  free(p);
  return again(p);
}
"""


def read(text: str | bytes) -> tuple[Report, ...]:
    """Return the reports of a log."""
    data = text if isinstance(text, bytes) else text.encode()
    return read_source(ReportSource("log", data)).reports


def runs(folder: Path, kind: str) -> tuple[str, str, Path]:
    """Return the output of a program with names and without, and the program."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for this machine")
    program = folder / kind
    (folder / "program.c").write_text(SOURCE)
    options = ["-g", "-O1", "-fno-optimize-sibling-calls", f"-fsanitize={kind}"]
    build = [compiler, *options, folder / "program.c", "-o", program]
    if subprocess.run(build, capture_output=True, check=False).returncode:
        pytest.skip(f"the compiler has no sanitizer of the kind {kind}")
    said = []
    for symbolize in (1, 0):
        settings = {f"{kind[0].upper()}SAN_OPTIONS": f"symbolize={symbolize}:color=never"}
        environment = {**os.environ, **settings}
        done = subprocess.run([program], capture_output=True, env=environment, check=False)
        said.append(done.stderr.decode())
    if "#0 " not in said[1] or "program.c:" not in said[0]:
        pytest.skip("the sanitizer does not work here, or finds no names")
    return said[0], said[1], program


def of_source(thread: ReportedThread) -> list[tuple[str, int, bool]]:
    """Return function, line and whether it is inlined, of the program's own frames."""
    return [
        (frame.symbol.name, frame.location.line, frame.is_inline)
        for frame in thread.frames
        if frame.location is not None and frame.location.path.endswith("program.c")
    ]


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["address", "thread"])
def test_names_equal_the_sanitizers_own(tmp_path: Path, kind: str) -> None:
    """An unsymbolized run gets every function, line and inlined call of a symbolized one."""
    named, bare, program = runs(tmp_path, kind)
    (wanted,) = read(named)
    (found,) = symbolicate_reports(read(bare), ReportNames([program])).reports
    rows = [of_source(thread) for thread in wanted.threads]
    assert [of_source(thread) for thread in found.threads] == rows
    # Recursion repeats one address, too, and is not an inlined call.
    assert [row[0] for row in rows[0]] == ["use", "wraps", *["again"] * 4, "main"]
    assert [row[2] for row in rows[0]] == [False, True, *[False] * 5]
    assert ["main"] in [[row[0] for row in one] for one in rows[1:]]


def test_each_finding_of_a_log_is_a_report() -> None:
    """The lines before stacks are their titles."""
    address, race = read(SANITIZER)
    assert address.exception is not None
    assert race.exception is not None
    assert (address.process.pid, race.process.pid) == (22535, 22561)
    assert (address.exception.type, address.exception.address) == (
        "AddressSanitizer",
        0x602000000014,
    )
    assert race.exception.message == "data race (pid=22561)"
    assert [thread.name for thread in address.threads] == [
        "READ of size 4 at 0x602000000014 thread T0",
        "freed by thread T0 here:",
    ]
    assert [frame.is_inline for frame in address.threads[0].frames] == [False, True, False, False]
    places = [frame.location for frame in address.threads[0].frames]
    assert [place and (place.path, place.line, place.column) for place in places] == [
        ("/src/a b.c", 2, 7),
        ("/src/a b.c", 3, None),
        ("../src/a.c", 4, None),
        None,
    ]
    libc, program = address.images
    assert (libc.uuid, libc.load_address) == (
        BuildId(bytes.fromhex("446c24067541ac5390")),
        0x7F01D7E45249 - 0x27249,
    )
    assert (program.name, program.path) == ("my prog", "/src/my prog")
    assert address.details["lines"][0] == "ready"
    # Programs of macOS are linked at 4 GB: the offset is from their header.
    (app,) = race.images
    assert (app.name, app.arch, app.uuid) == (
        "App",
        "arm64",
        UUID("6fdbb104-c032-3011-89ba-e26d5506e11a"),
    )
    assert race.threads[0].frames[0].offset == 0x121D


def test_dumps_of_llvms_tools_have_stack_addresses() -> None:
    """Their addresses are as they were on the stack."""
    (report,) = read(
        "PLEASE submit a bug report\nStack dump:\n0.\tProgram arguments: clang -x a.c\n"
        " #0 0x0000558da9cc2a01 llvm::sys::PrintStackTrace(llvm::raw_ostream&, int) "
        "(/usr/bin/clang+0x1c2a01)\n"
        "#12 0x0000558da9b41ce0 main driver.cpp:0:0\n"
    )
    (thread,) = report.threads
    first, last = thread.frames
    assert first.symbol is not None
    assert first.symbol.name == "llvm::sys::PrintStackTrace(llvm::raw_ostream&, int)"
    assert (first.offset, first.adjustment) == (0x1C2A01, Adjustment.RETURN)
    assert last.location is not None
    assert (last.location.path, last.location.line, last.details) == (
        "driver.cpp",
        None,
        {"number": 12},
    )
    assert report.exception is None


@pytest.mark.parametrize(
    ("line", "name", "path", "place"),
    [
        ("#0 0x12 in operator/(A, B) /a b/c.cc:3:4", "operator/(A, B)", None, "/a b/c.cc"),
        ("#0 0x12 in f(int (*)(char)) <stdin>:1", "f(int (*)(char))", None, "<stdin>"),
        ("#0 0x12 in -[A b:c:]+0x3f (App:x86_64+0x100003f20)", "-[A b:c:]", "App", None),
        ("#0 0x12  (/a (copy)/b:c+0x12)", None, "/a (copy)/b:c", None),
        ("#0 0x12 (<unknown module>)", None, None, None),
        ("#0 0x12 in f C:\\a b\\c.cc:3", "f", None, "C:\\a b\\c.cc"),
        (
            "#0 0x12 in f<(lambda at /a.cc:1:2)> /b c.cc:3:4",
            "f<(lambda at /a.cc:1:2)>",
            None,
            "/b c.cc",
        ),
        ("#0 f <null> (a.out+0x12)", "f", "a.out", None),
        ("#0 f <null>:2 (a.out+0x12)", "f", "a.out", None),
        ("#0 <null> <null> (0x12)", None, None, None),
        ("  * #3 f() a.c:3 (a.out+0x12)", "f()", "a.out", "a.c"),
        ("  #3 f() a.c:3 (a.out+0x12) (BuildId: 0011)", "f()", "a.out", "a.c"),
    ],
)
def test_frames(line: str, name: str | None, path: str | None, place: str | None) -> None:
    """Names, files and modules may have spaces and brackets."""
    frame = parse_frame_line(line)
    assert frame is not None
    assert (frame.name, frame.path) == (name, path)
    assert (frame.location and frame.location.path) == place


def test_offsets_of_apples_symbolizers_are_read() -> None:
    """They print the offset in a function if they have no file."""
    frame = parse_frame_line("#0 0x12 in -[A b:]+0x3f (App:arm64+0x100003f20)")
    assert frame is not None
    assert (frame.name, frame.into) == ("-[A b:]", 0x3F)


def test_a_frame_without_module_is_part_of_its_stack() -> None:
    """Its address is in the module's column."""
    (report,) = read(
        "WARNING: ThreadSanitizer: data race (pid=3)\n  Write of size 4 by main thread:\n"
        "  * #0 f a.c:1 (a.out+0x12)\n    #1 <null> <null> (0x000123450000)\n"
        "    #2 g b.c:2 (a.out+0x34)\n"
    )
    (thread,) = report.threads
    assert [frame.address for frame in thread.frames] == [None, 0x123450000, None]
    assert thread.name == "Write of size 4 by main thread:"


def test_a_stack_interrupted_by_other_output_continues_by_its_numbers() -> None:
    (report,) = read(
        "==1==ERROR: AddressSanitizer: SEGV\n    #0 0x12 in f /a.c:1\nprinted by another\n"
        "    #1 0x34 in g /a.c:2\n\nallocated here:\n    #0 0x56 in h /a.c:3\n"
    )
    first, second = report.threads
    assert (len(first.frames), first.details) == (2, {"lines": ["printed by another"]})
    assert second.name == "allocated here:"


@pytest.mark.parametrize("head", ["==5== ERROR: libFuzzer: deadly signal\n", "Fatal signal 6\n"])
def test_symbolized_stacks_without_modules_are_recognised(head: str) -> None:
    """Only sanitizers print an address, a file and a column."""
    (report,) = read(f"{head}    #0 0x12 in f /a.c:1:2\n    #1 0x34 in g b.c:2:3\n")
    assert len(report.threads[0].frames) == 2
    is_fuzzer = "libFuzzer" in head
    assert (report.exception and report.exception.type) == ("libFuzzer" if is_fuzzer else None)
    assert report.process.pid == (5 if is_fuzzer else None)


def test_other_lines_with_a_number_sign_are_not_frames() -> None:
    assert re.match(r"\s*#", "#1 thing to do")
    assert parse_frame_line("#1 thing to do") is None
    assert parse_frame_line("# 0x12 in f a.c:1") is None
