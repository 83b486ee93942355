"""Images of lines without UUIDs: named from the only given file of their name, with a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec

import pytest

from machtrace.errors import AmbiguousImageError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.images.named_file import find_by_name
from machtrace.images.search_path import SearchPath
from machtrace.model.arch import Arch
from machtrace.model.image import ImageFormat
from machtrace.model.report import NameSource
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.symbolizer.report_names import ReportNames
from machtrace.symbolizer.report_symbolicator import symbolicate_reports
from tests.support.compilers.executables import compile_macho

pytestmark = pytest.mark.peer

SOURCE = "int first(int n) { return n * 3; }\nint main(int n) { return first(n) + 1; }\n"
BASE = 0x1_0456_0000
LINUX = """\
#include <execinfo.h>
__attribute__((noinline)) int inner(int n) {
  void *stack[20];
  int count = backtrace(stack, 20);
  backtrace_symbols_fd(stack, count, 1); // INNER
  return count + n;
}
int main(int count, char **words) {
  return inner(count) == 1000; // MAIN
}
"""


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Two builds of a program, in separate folders."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles what is read here")
    folder = tmp_path_factory.mktemp("builds")
    for name, source in (("one", SOURCE), ("two", SOURCE + "int third = 3;\n")):
        (folder / name).mkdir()
        (folder / f"{name}.c").write_text(source)
        compile_macho([folder / f"{name}.c"], folder / name / "App", options=("-O1",))
    return folder


def named(text, search):
    """Return the report of some lines, and the problems with its names."""
    reports = read_source(ReportSource("lines", text.encode())).reports
    names = ReportNames([search])
    found = symbolicate_reports(reports, names)
    return found.reports[0], names


def lines(folder):
    """Return the lines of a stripped program's ``callStackSymbols`` for ``first``."""
    path = folder / "one/App"
    contents = MachOFileContents(path.read_bytes(), str(path))
    symbols = parse_symbols(contents)
    starts = dict(zip(symbols.names(), symbols.n_value.tolist(), strict=True))
    offset = starts["_first"] - contents.image.text_segment.vmaddr + 4
    return f"0   App                                 {BASE + offset:#018x} App + {offset}\n"


def test_the_only_file_of_the_images_name_is_used(builds):
    """As a file or in a folder; a warning states its path."""
    for search in (builds / "one/App", builds / "one"):
        report, _ = named(lines(builds), search)
        (frame,) = report.threads[0].frames
        assert (frame.symbol.name, frame.symbol.offset) == ("first", 4)
        (warning,) = report.warnings
        assert f"App has no UUID in the report; its names are from {builds}/one/App" in warning


def debug_lines(folder, difference=0):
    """Return the lines of a program with symbols: names, and no offset in the image."""
    path = folder / "one/App"
    contents = MachOFileContents(path.read_bytes(), str(path))
    symbols = parse_symbols(contents)
    starts = dict(zip(symbols.names(), symbols.n_value.tolist(), strict=True))
    header = contents.image.text_segment.vmaddr
    first, main = (BASE + starts[name] - header for name in ("_first", "_main"))
    return (
        f"0   App                                 {first + 4:#018x} first + 4\n"
        f"1   App                                 {main + 8:#018x} main + {8 + difference}\n"
        "2   UIKitCore                           0x00000001a2c1f400 UIApplicationMain + 800\n"
    )


def test_names_determine_the_load_address(builds):
    """And so the functions of its other addresses."""
    report, _ = named(debug_lines(builds), builds / "one")
    first, main, other = report.threads[0].frames
    assert report.images[0].load_address == BASE
    assert (first.symbol.name, first.symbol.offset) == ("first", 4)
    assert (main.symbol.name, main.symbol.offset) == ("main", 8)
    assert first.symbol.source is not NameSource.REPORT
    assert other.symbol.source is NameSource.REPORT
    assert any(f"App was loaded at {BASE:#x}" in warning for warning in report.warnings)


def test_names_of_another_build_determine_no_address(builds):
    """They contradict one another; the report's own names stay."""
    report, _ = named(debug_lines(builds, difference=4), builds / "one")
    assert report.images[0].load_address is None
    assert {frame.symbol.source for frame in report.threads[0].frames} == {NameSource.REPORT}
    assert any("do not fit" in warning for warning in report.warnings)


def test_several_builds_of_the_name_are_not_used(builds):
    """One of them would be wrong; the problem lists them, and the remedy."""
    report, names = named(lines(builds), builds)
    assert report.threads[0].frames[0].symbol is None
    assert report.warnings == ()
    (problem,) = names.problems
    assert isinstance(problem, AmbiguousImageError)
    assert f"{builds}/one/App (arm64 " in str(problem)
    assert f"{builds}/two/App (arm64 " in str(problem)
    assert "pass only the file" in problem.remedy


def test_copies_of_one_build_are_not_ambiguous(builds, tmp_path):
    """They have one UUID."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(builds / "one/App", tmp_path / name / "App")
    report, names = named(lines(builds), tmp_path)
    assert report.threads[0].frames[0].symbol.name == "first"
    assert names.problems == ()


def test_files_of_other_names_are_not_used(builds, tmp_path):
    other = shutil.copy(builds / "one/App", tmp_path / "Other")
    report, names = named(lines(builds), other)
    assert report.threads[0].frames[0].symbol is None
    assert names.problems == ()


def test_the_reports_architecture_selects_the_slice(builds):
    """There is no slice of another architecture."""
    places = SearchPath.of(builds / "one")
    found = find_by_name("App", Arch.ARM64, places)
    assert found is not None
    assert (found.arch, found.format) == (Arch.ARM64, ImageFormat.MACHO)
    assert find_by_name("App", Arch.X86_64, places) is None


def test_malformed_files_of_that_name_are_skipped(builds, tmp_path):
    for name, data in (("a", b""), ("b", b"\x7fELF"), ("c", b"\xcf\xfa\xed\xfe" + b"\xff" * 99)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "App").write_bytes(data)
    (tmp_path / "d").mkdir()
    shutil.copy(builds / "one/App", tmp_path / "d/App")
    report, _ = named(lines(builds), tmp_path)
    assert report.threads[0].frames[0].symbol.name == "first"


def test_the_search_stops_at_a_number_of_files(builds, tmp_path):
    """The error states that more exist."""
    data = (builds / "one/App").read_bytes()
    for number in range(70):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "App").write_bytes(data)
    with pytest.raises(AmbiguousImageError, match="and others"):
        find_by_name("App", None, SearchPath.of(tmp_path))


def test_lines_of_glibc_have_the_sources_lines(tmp_path):
    """``backtrace_symbols`` of a program of this machine."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for this machine")
    (tmp_path / "logs.c").write_text(LINUX)
    program = tmp_path / "logs"
    build = [compiler, "-g", "-O1", "-Wl,--build-id", tmp_path / "logs.c", "-o", program]
    if subprocess.run(build, capture_output=True, check=False).returncode:
        pytest.skip("the C library has no execinfo.h")
    text = subprocess.run([program], capture_output=True, text=True, check=False).stdout
    if not re.search(r"logs\(\+0x", text):
        pytest.skip("the C library writes other lines")
    report, _ = named(text, program)
    actual = [
        (frame.symbol.name, frame.location.line)
        for frame in report.threads[0].frames
        if frame.location is not None
    ]
    wanted = LINUX.splitlines()
    assert ("main", 1 + next(n for n, line in enumerate(wanted) if "// MAIN" in line)) in actual
    assert actual[0][0] == "inner"
    assert "backtrace(stack" in wanted[actual[0][1] - 1]
