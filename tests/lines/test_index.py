"""Lines and inlined calls of real programs; the oracles are their sources and llvm-symbolizer."""

import json
import shutil
import subprocess
from itertools import pairwise

import numpy as np
import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.lines.index_cache import IndexCache
from machtrace.model.arch import Arch
from machtrace.model.symbol import Certainty
from machtrace.symbols.elf import elf_symbol_table
from machtrace.symbols.macho.table import macho_symbol_table
from tests.support.compilers.debug_programs import (
    DSYMUTIL,
    INLINED_C,
    debug_file,
    line_of,
    make_dsym,
)
from tests.support.compilers.executables import compile_elf, compile_macho

pytestmark = pytest.mark.peer

PEER = shutil.which("llvm-symbolizer-19") or shutil.which("llvm-symbolizer")
BUILDS = (
    "elf-dwarf4",
    "elf-dwarf5",
    "elf-arm64",
    "elf-compressed",
    "elf-executable",
    "elf-x86",
    "dsym-arm64",
    "dsym-x86_64",
)
_WHOLE = ("-Wl,-e,main", "-Wl,--no-gc-sections")
_NAMED = (Certainty.EXACT, Certainty.EXPORT)
DESCRIBED = ("outer", "main", "seldom", "elsewhere", "labelled")
PADDING = 16
"""Bytes that may follow a function, up to where the next one is aligned."""
OTHER_C = """\
extern volatile int sink;
__attribute__((section("{section}"), noinline)) void elsewhere(void) {{
  sink = 9; // ELSEWHERE
}}

asm(".text\\n.globl {prefix}assembled\\n{prefix}assembled:\\n{nops}");

__attribute__((noinline)) int labelled(int n) {{
  sink = n; // BEFORE
  asm volatile(".globl {prefix}label\\n{prefix}label:"); // LABEL
  sink = 2; // AFTER
  return n;
}}
"""
LINES = {mark: line_of(INLINED_C, mark) for mark in ("LEAF", "FIRST", "SECOND", "OUTER", "MAIN")}


@pytest.fixture(scope="session", params=BUILDS)
def program(request, tmp_path_factory):
    """A program of two sources, and its debug file."""
    folder = tmp_path_factory.mktemp(request.param)
    is_macho = request.param.startswith("dsym")
    other = OTHER_C.format(
        section="__TEXT,__other" if is_macho else ".other",
        prefix="_" if is_macho else "",
        nops="nop\\nnop\\nnop\\nnop\\n",
    )
    sources = [folder / "inlined.c", folder / "other.c"]
    for source, text in zip(sources, (INLINED_C, other), strict=True):
        source.write_text(text)
    if is_macho:
        if DSYMUTIL is None:
            pytest.skip("dsymutil is not installed")
        arch = Arch(request.param.partition("-")[2])
        entry = ("-Wl,-e,_main",)
        built = compile_macho(
            sources, folder / "a", arch=arch, options=("-g", "-O1"), link_options=entry
        )
        return built, debug_file(make_dsym(built))
    options = {
        "elf-dwarf4": ("-gdwarf-4", "-shared"),
        "elf-dwarf5": ("-gdwarf-5", "-shared"),
        "elf-arm64": ("-g", "-shared"),
        "elf-compressed": ("-g", "-gz=zlib", "-Wl,--compress-debug-sections=zlib", "-shared"),
        "elf-executable": ("-g", "-static", *_WHOLE),
        "elf-x86": ("-g", "-fno-pic", "-static", *_WHOLE),
    }[request.param]
    machine = {"elf-arm64": "aarch64", "elf-x86": "x86"}.get(request.param, "x86_64")
    built = compile_elf(
        sources, folder / "a", target=f"{machine}-linux-musl", options=("-O1", *options)
    )
    return built, debug_file(built)


@pytest.fixture(scope="session")
def index(program):
    """Its index."""
    return IndexCache(None).index(program[1])


@pytest.fixture(scope="session")
def functions(program):
    """Return the offsets of the program's functions, by name."""
    built, file = program
    if isinstance(file.contents, MachOFileContents):
        table = macho_symbol_table(MachOFileContents(built.read_bytes(), str(built)))
    else:
        table = elf_symbol_table(file.contents)
    symbols = [table.find(offset) for offset in table.starts.tolist()]
    return {
        symbol.name: range(symbol.offset, symbol.offset + symbol.size)
        for symbol in symbols
        if symbol is not None and symbol.certainty in _NAMED
    }


def summary(frames):
    """Return names and lines."""
    return [(frame.name, frame.location.line) for frame in frames]


def described(index, extent):
    """Return a function without the padding after it, which has no debug information."""
    offsets = [offset for offset in extent if index.inlined(offset)]
    assert offsets == list(range(extent.start, offsets[-1] + 1))
    assert len(extent) - len(offsets) < PADDING
    return offsets


def test_two_inlined_calls_of_one_function_are_distinguished(index, functions):
    """``leaf``, through ``middle``, by the lines of the calls."""
    chains = {tuple(summary(index.inlined(offset))) for offset in functions["outer"]}

    for call in ("FIRST", "SECOND"):
        expected = (("leaf", LINES["LEAF"]), ("middle", LINES[call]), ("outer", LINES["OUTER"]))
        assert expected in chains


def test_chains_end_with_the_function_that_contains_the_code(index, functions):
    """For every byte of every function; all other entries are callers in the source."""
    callers = {"leaf": "middle", "middle": "outer"}
    for name in DESCRIBED:
        for offset in described(index, functions[name]):
            names = [frame.name for frame in index.inlined(offset)]
            assert names[-1] == name
            assert all(callers[one] == above for one, above in pairwise(names))
            assert index.function_start(offset) == functions[name].start


def test_paths_of_both_sources_are_absolute(index, functions, program):
    for name, source in (("outer", "inlined.c"), ("elsewhere", "other.c")):
        for frame in index.inlined(functions[name].start):
            assert frame.location.path == str(program[0].with_name(source))
            assert frame.location.column is None


def test_a_label_does_not_end_a_function(index, functions):
    """The symbol table has it in the middle of a function, whose lines continue after it."""
    both = [*functions["labelled"], *functions.get("label", ())]
    lines = {one for offset in both for one in summary(index.inlined(offset))}

    for mark in ("BEFORE", "AFTER"):
        source = OTHER_C.replace("{{", "{").replace("}}", "}")
        assert ("labelled", line_of(source, mark)) in lines


def test_code_without_debug_information_has_no_lines(index, functions):
    """Assembly with a symbol."""
    for offset in functions["assembled"]:
        assert index.inlined(offset) == ()


def test_columns_equal_chains(index, functions):
    """For all code, in any order, and for the addresses around it."""
    starts = [extent.start for extent in functions.values()]
    ends = [extent.stop for extent in functions.values()]
    offsets = np.arange(max(0, min(starts) - 64), max(ends) + 64, dtype=np.uint64)
    offsets = np.random.default_rng(2).permutation(offsets)[:20_000]

    columns = index.columns(offsets)
    chains = index.chains(columns.location)

    for at, offset in enumerate(offsets[:2_000].tolist()):
        rows = range(chains.first[at], chains.first[at + 1])
        assert [
            (index.function_name(chains.function[row]), int(chains.line[row])) for row in rows
        ] == [(frame.linkage_name, frame.location.line or 0) for frame in index.inlined(offset)]
        assert columns.depth[at] == max(0, len(rows) - 1)


@pytest.mark.skipif(PEER is None, reason="llvm-symbolizer is not installed")
def test_every_chain_equals_llvm_symbolizers(index, functions, program):
    """Names, files and lines, for every byte of the functions with debug information."""
    file = program[1]
    offsets = [offset for name in DESCRIBED for offset in described(index, functions[name])]
    done = subprocess.run(
        [PEER, f"--obj={file.path}", "--output-style=JSON", "--inlines", "--no-demangle"],
        input="\n".join(hex(offset + file.header_svma) for offset in offsets),
        capture_output=True,
        text=True,
        check=True,
    )

    for offset, printed in zip(offsets, done.stdout.splitlines(), strict=True):
        theirs = [
            (call["FileName"], call["Line"], call["FunctionName"])
            for call in json.loads(printed)["Symbol"]
        ]
        ours = [
            (frame.location.path, frame.location.line or 0, frame.linkage_name)
            for frame in index.inlined(offset)
        ]
        # The peer takes the last name from the symbol table, where labels are functions, too.
        assert [*ours[:-1], ours[-1][:2]] == [*theirs[:-1], theirs[-1][:2]]
