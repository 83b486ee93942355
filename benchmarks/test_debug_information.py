"""Lines and inlined calls of a dSYM with 60,000 functions: ours, symbolic's, llvm-symbolizer's.

The dSYM is built by ``programs/inlined_calls.py``, which takes some minutes, or is the one whose
library MACHTRACE_BENCHMARK_DSYM names. Before anything is timed, the chains of 20,000 random
addresses are compared with llvm-symbolizer's.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.images.debug_file import DebugFile, FoundBy
from machtrace.images.open_file import open_image_file
from machtrace.lines.index_builder import build_index
from machtrace.lines.index_cache import IndexCache, IndexFolder, index_name

PROGRAM = Path(__file__).parent / "programs" / "inlined_calls.py"
PEER = shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer")
COMPARED = 20_000
BULK = 1_000_000
ONE_BY_ONE = 20_000
STARTED = """
import sys, time
start = time.perf_counter()
from machtrace.lines.index import DebugIndex
from machtrace.images.open_file import open_image_file
from machtrace.lines.symcache import SymCache
print(len(DebugIndex(SymCache(open_image_file(sys.argv[1]))).inlined(int(sys.argv[2]))))
with open("/proc/self/status") as status:
    memory = [line.split()[1] for line in status if line.startswith("VmRSS")]
print(time.perf_counter() - start, *memory)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library; its dSYM is beside it."""
    given = os.environ.get("MACHTRACE_BENCHMARK_DSYM")
    if given:
        return Path(given)
    spec = spec_from_file_location("inlined_calls", PROGRAM)
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    try:
        return program.build(tmp_path_factory.mktemp("inlined_calls"))
    except FileNotFoundError as error:
        pytest.skip(f"{error} is not installed")


@pytest.fixture(scope="module")
def file(library):
    """The dSYM's DWARF."""
    path = library.with_name(f"{library.name}.dSYM") / "Contents/Resources/DWARF" / library.name
    data = open_image_file(path)
    contents = MachOFileContents(data, str(path))
    return DebugFile(contents=contents, data=data, path=str(path), found_by=FoundBy.GIVEN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the index."""
    return IndexFolder(tmp_path_factory.mktemp("indices"))


@pytest.fixture(scope="module")
def index(file, folder):
    """The built index."""
    return IndexCache(folder).index(file)


@pytest.fixture(scope="module")
def offsets(file):
    """Random offsets in the code."""
    text = file.contents.image.section("__TEXT", "__text")
    start = text.address - file.header_svma
    return np.random.default_rng(1).integers(start, start + text.size, BULK).astype(np.uint64)


def peer_answers(file, offsets, *options):
    """Return llvm-symbolizer's output for ``offsets``."""
    if PEER is None:
        pytest.skip("llvm-symbolizer is not installed")
    places = "\n".join(hex(offset + file.header_svma) for offset in offsets.tolist())
    command = [PEER, f"--obj={file.path}", "--inlines", "--no-demangle", *options]
    done = subprocess.run(command, input=places, capture_output=True, text=True, check=True)
    return done.stdout


def test_chains_equal_llvm_symbolizers(file, index, offsets):
    """Names, files, lines and depth, for each of 20,000 random addresses."""
    compared = offsets[:COMPARED]
    printed = peer_answers(file, compared, "--output-style=JSON").splitlines()
    different = 0
    for offset, line in zip(compared.tolist(), printed, strict=True):
        theirs = [
            (call["FunctionName"], call["FileName"], call["Line"])
            for call in json.loads(line)["Symbol"]
        ]
        ours = [
            (call.linkage_name, call.location.path, call.location.line or 0)
            for call in index.inlined(offset)
        ]
        different += ours != theirs

    assert different == 0


@pytest.mark.benchmark(group="make an index", min_rounds=3)
def test_build(benchmark, file):
    """In a child process, its start included."""
    made = benchmark.pedantic(build_index, args=(file,), rounds=3)

    benchmark.extra_info["bytes"] = len(made)


@pytest.mark.benchmark(group="make an index", min_rounds=3)
def test_build_by_symbolic(benchmark, file):
    """The library in this process."""
    from symbolic import Archive

    def build():
        archive = Archive.open(file.path)
        objects = list(archive.iter_objects())
        sink = io.BytesIO()
        objects[0].make_symcache().dump_into(sink)
        return sink.getvalue()

    benchmark.extra_info["bytes"] = len(benchmark.pedantic(build, rounds=3))


@pytest.mark.benchmark(group="lines and depth", min_rounds=3)
def test_columns(benchmark, index, offsets):
    """A million addresses: location, file, line, function and depth of each."""
    columns = benchmark(index.columns, offsets)

    benchmark.extra_info["addresses/s"] = BULK / benchmark.stats.stats.min
    benchmark.extra_info["calls an address"] = float(columns.depth.mean() + 1)


@pytest.mark.benchmark(group="lines and depth", min_rounds=3)
def test_columns_by_address(benchmark, index, offsets):
    """The same million, sorted, as samples often are."""
    benchmark(index.columns, np.sort(offsets))

    benchmark.extra_info["addresses/s"] = BULK / benchmark.stats.stats.min


@pytest.mark.benchmark(group="whole chains", min_rounds=3)
def test_chains(benchmark, index, offsets):
    """A million addresses: function, file and line of every call at each."""

    def chains():
        return index.chains(index.columns(offsets).location)

    benchmark(chains)

    benchmark.extra_info["addresses/s"] = BULK / benchmark.stats.stats.min


@pytest.mark.benchmark(group="whole chains", min_rounds=3)
def test_chains_by_symbolic(benchmark, file, offsets, tmp_path):
    """The library's lookups, which take one address each."""
    from symbolic import SymCache

    path = tmp_path / "symcache"
    path.write_bytes(build_index(file))
    cache = SymCache.open(str(path))
    places = offsets[:ONE_BY_ONE].tolist()

    def lookups():
        for place in places:
            cache.lookup(place)

    benchmark.pedantic(lookups, rounds=3)
    benchmark.extra_info["addresses/s"] = ONE_BY_ONE / benchmark.stats.stats.min


@pytest.mark.benchmark(group="whole chains", min_rounds=3)
def test_chains_by_llvm_symbolizer(benchmark, file, offsets):
    """The peer's time for a larger number of addresses minus that for a smaller one."""

    def lookups():
        start = time.perf_counter()
        peer_answers(file, offsets[:ONE_BY_ONE])
        middle = time.perf_counter()
        peer_answers(file, offsets[: 3 * ONE_BY_ONE])
        return (time.perf_counter() - middle) - (middle - start)

    spent = benchmark.pedantic(lookups, rounds=1)
    benchmark.extra_info["addresses/s"] = 2 * ONE_BY_ONE / spent


@pytest.mark.benchmark(group="first answer of a new process", min_rounds=3)
@pytest.mark.usefixtures("index")
def test_first_answer(benchmark, file, folder, offsets):
    """From a cached index; Python's own start is left out, imports are not."""
    path = folder.path(index_name(file))
    command = [sys.executable, "-c", STARTED, str(path), str(offsets[0])]
    spent = []

    def first():
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        spent.append(done.stdout.split()[1:])

    benchmark.pedantic(first, rounds=5)
    benchmark.extra_info["seconds"] = min(float(one) for one, *_ in spent)
    benchmark.extra_info["kB resident"] = min(int(one[1]) for one in spent if len(one) > 1)


@pytest.mark.benchmark(group="first answer of a new process", min_rounds=3)
def test_first_answer_by_llvm_symbolizer(benchmark, file, offsets):
    """The peer has no index to open."""
    benchmark.pedantic(peer_answers, args=(file, offsets[:1]), rounds=5)
