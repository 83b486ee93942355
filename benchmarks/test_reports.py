"""Reports symbolicated in one call, and by llvm-symbolizer called once a file.

The library with a dSYM is that of ``test_debug_information.py``: MACHTRACE_BENCHMARK_DSYM names it,
or it is built. MACHTRACE_BENCHMARK_REPORTS is the number of files, 1,000 by default; the
peer processes MACHTRACE_BENCHMARK_PEER_REPORTS of them, 40 by default, and its time is
extrapolated to all.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.images.open_file import open_image_file
from machtrace.reports.readers import read_source
from machtrace.reports.source import ReportSource

PROGRAMS = Path(__file__).parent / "programs"
PEER = shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer")
FILES = int(os.environ.get("MACHTRACE_BENCHMARK_REPORTS", "1000"))
PEER_FILES = min(FILES, int(os.environ.get("MACHTRACE_BENCHMARK_PEER_REPORTS", "40")))
THREADS, DEPTH = 100, 30
GOAL = 20


def loaded(name):
    """Import a program of the folder beside this file."""
    spec = spec_from_file_location(name, PROGRAMS / f"{name}.py")
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library; its dSYM is beside it."""
    given = os.environ.get("MACHTRACE_BENCHMARK_DSYM")
    if given:
        return Path(given)
    try:
        return loaded("inlined_calls").build(tmp_path_factory.mktemp("inlined_calls"))
    except FileNotFoundError as error:
        pytest.skip(f"{error} is not installed")


@pytest.fixture(scope="module")
def dsym(library):
    """The file with the DWARF."""
    return library.with_name(f"{library.name}.dSYM") / "Contents/Resources/DWARF" / library.name


@pytest.fixture(scope="module", params=["random", "shared"])
def files(request, library, tmp_path_factory):
    """The folder of the reports, and the addresses to look up in each."""
    image = MachOFileContents(open_image_file(library), str(library)).image
    text, base = image.section("__TEXT", "__text"), image.text_segment.vmaddr
    reports = loaded("ips_reports")
    code = range(text.address - base, text.address - base + text.size, 4)
    program = reports.Program(image.uuid, image.text_segment.vmsize, code)
    folder = tmp_path_factory.mktemp(request.param)
    shared = request.param == "shared"
    options = {"threads": THREADS, "depth": DEPTH, "shared": shared}
    return folder, reports.write_reports(program, folder, FILES, **options), base


def spent():
    """Return the elapsed seconds, and the processor time of children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([time.perf_counter(), usage.ru_utime + usage.ru_stime])


def symbolicated(folder, out, search, *words):
    """Return the time of the command, its start included."""
    command = [sys.executable, "-m", "machtrace", "symbolicate", folder, "-o", out]
    begun = spent()
    subprocess.run([*command, "--search", search, *words], check=True, capture_output=True)
    return spent() - begun


def peer(dsym, offsets, base, *words):
    """Return the peer's output for one file."""
    asked = "\n".join(hex(base + offset) for offset in offsets)
    command = [PEER, f"--obj={dsym}", "--inlines", *words]
    return subprocess.run(command, input=asked, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(PEER is None, reason="llvm-symbolizer is not installed")
def test_lines_equal_llvm_symbolizers(files, dsym, tmp_path):
    """Every line and every inlined call of three files."""
    folder, looked_up, base = files
    for number in range(3):
        out = tmp_path / "out.ips"
        symbolicated(folder / f"{number:04}.ips", out, dsym, "--format", "ips")
        (report,) = read_source(ReportSource("out", out.read_bytes())).reports
        ours = [
            (frame.location.path, frame.location.line or 0)
            for thread in report.threads
            for frame in thread.frames
            if frame.image == 0
        ]
        printed = peer(dsym, looked_up[number], base, "--output-style=JSON")
        theirs = [
            (call["FileName"], call["Line"])
            for line in printed.splitlines()
            for call in json.loads(line)["Symbol"]
        ]
        assert ours == theirs


@pytest.mark.skipif(PEER is None, reason="llvm-symbolizer is not installed")
@pytest.mark.parametrize("name", ["apple", "ips"])
def test_files(benchmark, files, dsym, tmp_path, monkeypatch, name):
    """Symbolicate all in one call, with the debug information's index built before or in it."""
    folder, looked_up, base = files
    monkeypatch.setenv("MACHTRACE_CACHE", str(tmp_path / "cache"))
    first = symbolicated(folder, tmp_path / "first", dsym, "--format", name)
    ours = []

    def once():
        ours.append(symbolicated(folder, tmp_path / "out", dsym, "--format", name))

    begun = spent()
    for offsets in looked_up[:PEER_FILES]:
        peer(dsym, offsets, base)
    theirs = (spent() - begun) * FILES / PEER_FILES
    benchmark.pedantic(once, rounds=1)

    facts = {"files": FILES, "goal": GOAL}
    for place, kind in enumerate(("elapsed", "processor")):
        facts[f"{kind} seconds"] = float(ours[0][place])
        facts[f"{kind} with no index before"] = float(first[place])
        facts[f"{kind} llvm-symbolizer"] = float(theirs[place])
        facts[f"{kind} times"] = float(theirs[place] / ours[0][place])
    benchmark.extra_info.update(facts)
    print(facts)  # noqa: T201 (with -s, before the tables)
