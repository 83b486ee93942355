"""Crashes of Swift's runtime on Linux: frames without names are named by the files' build-ids."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from machtrace.errors import FormatError
from machtrace.formats.elf.contents import ElfFileContents
from machtrace.images.open_file import open_image_file
from machtrace.model.report import NameSource
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource
from machtrace.symbolizer.report_names import ReportNames
from machtrace.symbolizer.report_symbolicator import symbolicate_reports

pytestmark = pytest.mark.peer

SOURCE = """\
__attribute__((noinline)) int inner(int *n) {
  return *n + 1;
}
int outer(int *n) {
  return inner(n) * 3;
}
"""
BASE = 0x7F00_0000_0000
TEXT = """\
*** Program crashed: Bad pointer dereference at 0x0000000000000004 ***

Platform: x86_64 Linux (Debian GNU/Linux 12)

Thread 0 crashed:

0 {:#018x} <unknown> in libcrash.so
1 [ra] {:#018x} <unknown> in libcrash.so


Images:

{:#018x}–{:#018x} {} libcrash.so /srv/libcrash.so
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library with debug information and a build-id."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for this machine")
    source, path = tmp_path / "crash.c", tmp_path / "libcrash.so"
    source.write_text(SOURCE)
    options = ("-g", "-O1", "-shared", "-fPIC", "-Wl,--build-id=sha1")
    subprocess.run([compiler, *options, source, "-o", path], check=True)
    return path


def test_frames_are_named_by_build_id(library: Path, tmp_path: Path) -> None:
    """The file may have another name here; lines are the source's."""
    try:
        image = ElfFileContents(open_image_file(str(library)), str(library)).image
    except FormatError as error:
        pytest.skip(f"the compiler makes no ELF files: {error}")
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    listing = subprocess.run([nm, library], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in listing.splitlines())
    starts = {row[2]: int(row[0], 16) for row in rows if row[1:2] == ["T"]}
    other = tmp_path / "kept" / "renamed.bin"
    other.parent.mkdir()
    library.rename(other)
    # After outer's first bytes is its call: within both functions whatever the machine's code is.
    inner, outer = BASE + starts["inner"], BASE + starts["outer"] + 5
    text = TEXT.format(inner, outer, BASE, BASE + image.size, image.build_id)
    reports = read_source(ReportSource("log", text.encode())).reports
    (report,) = symbolicate_reports(reports, ReportNames([other])).reports
    first, second = report.threads[0].frames
    assert (first.symbol.name, second.symbol.name) == ("inner", "outer")
    assert first.symbol.source is NameSource.DEBUG_INFORMATION
    assert second.symbol.offset == 5
    assert 1 <= first.location.line <= 2
    assert second.location.path == str(tmp_path / "crash.c")
    assert 4 <= second.location.line <= 5
