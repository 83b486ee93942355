"""Names from symbol tables: ours, symbolic's and llvm-symbolizer's, in one run.

MACHTRACE_BENCHMARK_IMAGES has the paths of real Mach-O files for 64-bit processors, joined as in
PATH; without it, one with 400,000 functions is made. Rates are of processor time, from the median
round, so that they hold on a busy machine; a table of them is printed at the end.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.segments import Section
from machtrace.images.open_file import open_image_file
from machtrace.symbolizer.symbolicator import Symbolicator
from tests.support.writers.function_lists import uleb
from tests.support.writers.macho import TEXT_OFFSET, BuiltSymbol, ThinFile

PEER = shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer")
MADE = 400_000
BULK = 4_000_000
ONE_BY_ONE = 100_000
LINES = 200_000
FRESH = 7
"""Processes that are started for one figure."""

FIRST = """
import sys
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.images.open_file import open_image_file
from machtrace.symbols.image_symbols import ImageSymbols
data = open_image_file(sys.argv[1])
print(ImageSymbols(MachOFileContents(data, sys.argv[1])).find(int(sys.argv[2])).name)
"""
FIRST_COLUMN = """
import sys
import numpy as np
from machtrace.symbolizer.symbolicator import Symbolicator
print(*Symbolicator().lookup(sys.argv[1], np.array([int(sys.argv[2])], np.uint64)).names())
"""
MEMORY = """
import sys
import numpy as np
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.images.open_file import open_image_file
from machtrace.symbols.macho.table import macho_symbol_table
def resident():
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0])
offsets = np.arange(0, 1 << 22, 64, dtype=np.uint64)
contents = MachOFileContents(open_image_file(sys.argv[1]), sys.argv[1])
before = resident()
table = macho_symbol_table(contents)
table.ids(offsets)
print(table.nbytes, 1024 * (resident() - before))
"""


def _images() -> list[Path | None]:
    given = os.environ.get("MACHTRACE_BENCHMARK_IMAGES", "")
    return [Path(path) for path in given.split(os.pathsep) if path] or [None]


@pytest.fixture(scope="module")
def rows(request):
    """Figures by (image, measurement), printed at the end."""
    figures: dict[tuple[str, str], str] = {}
    yield figures
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print()  # noqa: T201 (the result)
        for (image, what), figure in figures.items():
            print(f"{image:<28s} {what:<52s} {figure:>16s}")  # noqa: T201


@pytest.fixture(scope="module", params=_images(), ids=lambda path: path.name if path else "made")
def image(request, tmp_path_factory):
    """A file with very many symbols."""
    if request.param is not None:
        return request.param
    path = tmp_path_factory.mktemp("made") / "made.dylib"
    names = (f"__ZN4made9namespace{i % 97:02d}8functionEi{i}v" for i in range(MADE))
    symbols = tuple(
        BuiltSymbol(name, TEXT_OFFSET + 16 * i, n_type=0xE) for i, name in enumerate(names)
    )
    starts = uleb(TEXT_OFFSET) + uleb(16) * (MADE - 1) + b"\0"
    path.write_bytes(
        ThinFile(code=bytes(16 * MADE), symbols=symbols, function_starts=starts).build()
    )
    return path


@pytest.fixture(scope="module")
def text(image) -> Section:
    """Its code section."""
    contents = MachOFileContents(open_image_file(image), str(image))
    section = contents.image.section("__TEXT", "__text")
    assert section is not None
    return section


@pytest.fixture(scope="module")
def base(image) -> int:
    """The stated address of its header."""
    return MachOFileContents(open_image_file(image), str(image)).image.header_svma


@pytest.fixture(scope="module")
def offsets(text, base):
    """Random addresses in it, from the header."""
    low, high = text.address - base, text.end - base
    return np.random.default_rng(11).integers(low, high, BULK, dtype=np.uint64)


def timed(benchmark, run, count, rounds):
    """Run a function for pytest-benchmark; return answers per second of processor time."""
    times, waits = [], []

    def measured():
        began, began_waiting = time.process_time(), time.perf_counter()
        result = run()
        times.append(time.process_time() - began)
        waits.append(time.perf_counter() - began_waiting)
        return result

    result = benchmark.pedantic(measured, rounds=rounds, warmup_rounds=1)
    rate = count / statistics.median(times[1:])
    benchmark.extra_info["answers_per_second"] = round(rate)
    benchmark.extra_info["answers_per_second_elapsed"] = round(count / statistics.median(waits[1:]))
    return result, rate


@pytest.fixture
def note(rows, image):
    """Store a figure for the table."""
    return lambda what, figure: rows.__setitem__((image.name, what), figure)


@pytest.mark.parametrize("order", ["random", "sorted"])
@pytest.mark.benchmark(group="bulk lookups")
def test_bulk(benchmark, image, offsets, note, order):
    """Ids of functions only, the usual bulk query."""
    symbolicator = Symbolicator(lines=False)
    symbolicator.lookup(image, offsets[:5000])
    asked = np.sort(offsets) if order == "sorted" else offsets
    columns, rate = timed(benchmark, lambda: symbolicator.lookup(image, asked), BULK, 15)

    assert (columns.symbols >= 0).all()
    note(f"bulk: ours, {order}, answers/s", f"{rate:,.0f}")
    elapsed = benchmark.extra_info["answers_per_second_elapsed"]
    note(f"bulk: ours, {order}, answers/s elapsed", f"{elapsed:,.0f}")


@pytest.mark.benchmark(group="bulk lookups")
def test_bulk_of_three_columns(benchmark, image, offsets, note):
    """Ids, function starts and certainties."""
    symbolicator = Symbolicator(lines=False)
    symbolicator.lookup(image, offsets[:5000])

    def run():
        columns = symbolicator.lookup(image, offsets)
        return columns.symbols, columns.function_starts, columns.certainties

    _, rate = timed(benchmark, run, BULK, 5)
    note("bulk: ours, 3 columns, answers/s", f"{rate:,.0f}")


@pytest.mark.benchmark(group="bulk lookups")
def test_bulk_by_symbolic(benchmark, image, offsets, note):
    """Its lookups take one address each."""
    symbolic = pytest.importorskip("symbolic", reason="the peer")
    archive = symbolic.Archive.open(str(image))
    (one,) = list(archive.iter_objects())
    cache = one.make_symcache()
    asked = offsets[:ONE_BY_ONE].tolist()
    _, rate = timed(benchmark, lambda: [cache.lookup(offset) for offset in asked], ONE_BY_ONE, 3)
    note("bulk: symbolic, answers/s", f"{rate:,.0f}")


@pytest.mark.skipif(PEER is None, reason="llvm-symbolizer is not installed")
@pytest.mark.parametrize("option", ["--no-demangle", "--demangle"])
@pytest.mark.benchmark(group="bulk lookups")
def test_bulk_by_llvm(benchmark, image, offsets, base, note, tmp_path, option):
    """The time for many addresses minus that for one, so that the start does not count."""
    lines = "".join(f"{offset + base:#x}\n" for offset in offsets[:LINES].tolist())
    (tmp_path / "many").write_text(lines)
    (tmp_path / "one").write_text(lines.partition("\n")[0] + "\n")
    command = [PEER, option, f"--obj={image}"]

    def seconds(name):
        with (tmp_path / name).open() as asked:
            return child_seconds(command, stdin=asked)

    one = statistics.median(seconds("one") for _ in range(3))
    many = []
    benchmark.pedantic(lambda: many.append(seconds("many")), rounds=3)
    rate = (LINES - 1) / (statistics.median(many) - one)
    benchmark.extra_info["answers_per_second"] = round(rate)
    note(f"bulk: llvm-symbolizer {option}, answers/s", f"{rate:,.0f}")


def child_seconds(command, stdin=None):
    """Return the processor time of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdin=stdin, stdout=subprocess.DEVNULL, check=True, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("who", ["one name", "one offset's column", "llvm-symbolizer"])
@pytest.mark.benchmark(group="first answer of a fresh process")
def test_first_answer(benchmark, image, text, base, note, who):
    """From the start of the process to its end; the file is in the system's cache."""
    offset = (text.address + text.size // 3) - base
    command = {
        "one name": [sys.executable, "-c", FIRST, image, str(offset)],
        "one offset's column": [sys.executable, "-c", FIRST_COLUMN, image, str(offset)],
        "llvm-symbolizer": [PEER or "", f"--obj={image}", hex(offset + base)],
    }[who]
    if who == "llvm-symbolizer" and PEER is None:
        pytest.skip("llvm-symbolizer is not installed")
    times, waits = [], []

    def run():
        began = time.perf_counter()
        times.append(child_seconds(command))
        waits.append(time.perf_counter() - began)

    benchmark.pedantic(run, rounds=FRESH, warmup_rounds=1)
    benchmark.extra_info["processor_seconds"] = statistics.median(times[1:])
    figure = (
        f"{1000 * statistics.median(times[1:]):.0f} / {1000 * statistics.median(waits[1:]):.0f}"
    )
    note(f"first answer: {who}, ms processor / elapsed", figure)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's procfs")
@pytest.mark.benchmark(group="memory")
def test_memory(benchmark, image, note):
    """The index's size, and the process's growth by building and querying it."""
    printed = benchmark.pedantic(
        lambda: (
            subprocess.run(
                [sys.executable, "-c", MEMORY, image], capture_output=True, text=True, check=True
            ).stdout
        ),
        rounds=1,
    )
    index, grown = map(int, printed.split())
    benchmark.extra_info.update(index=index, resident=grown)
    note("memory: index / resident growth, MB", f"{index / 1e6:.1f} / {grown / 1e6:.1f}")


@pytest.mark.benchmark(group="index")
def test_table(benchmark, image, note):
    """All functions of the image, from the mapped file."""
    from machtrace.symbols.macho.table import macho_symbol_table

    contents = MachOFileContents(open_image_file(image), str(image))
    table, rate = timed(benchmark, lambda: macho_symbol_table(contents), 1, 5)
    note(f"table of {len(table):,} functions, ms", f"{1000 / rate:.0f}")
