"""Names for many offsets at once are those of each on its own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from machtrace.errors import FileAccessError, FormatError, MachtraceError, MissingExtraError
from machtrace.macho.contents import FileContents
from machtrace.macho.cpu import CPU_TYPE_ARM64, CPU_TYPE_X86_64
from machtrace.model.address import ImageOffset
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.symbolicate.macho_symbols import macho_symbol_table
from machtrace.symbolicate.symbol_columns import NO_OFFSET
from machtrace.symbolicate.symbol_table import CERTAINTIES
from machtrace.symbolicate.symbolicator import Symbolicator
from machtrace.testing.debug_programs import DSYMUTIL, INLINED_C, line_of, make_dsym
from machtrace.testing.macho_compiler import compile_macho
from machtrace.testing.macho_files import BuiltSlice, ThinFile, fat_file


def offsets(*values):
    """A column."""
    return np.array(values, np.uint64)


@pytest.fixture
def stripped(twins):
    """A library with exported names only."""
    return twins(Arch.ARM64)[1]


@pytest.fixture
def table(stripped):
    """All its functions."""
    return macho_symbol_table(FileContents(stripped.read_bytes(), "stripped"))


@pytest.mark.parametrize("count", [6, 6000])
def test_each_row_is_the_answer_to_its_offset(stripped, table, count):
    """In the order asked for, with and without a table of all."""
    asked = np.random.default_rng(2).integers(0, 0x2000, count, dtype=np.uint64)
    columns = Symbolicator().lookup(stripped, asked)
    truth = [table.find(ImageOffset(offset)) for offset in asked.tolist()]

    assert [None if one is None else one.name for one in truth] == columns.names()
    assert [None if one is None else one.linkage_name for one in truth] == columns.linkage_names()
    starts = [NO_OFFSET if one is None else one.offset for one in truth]
    assert starts == columns.function_starts.tolist()
    assert ["none" if one is None else one.certainty.value for one in truth] == [
        CERTAINTIES[number].value for number in columns.certainties.tolist()
    ]
    for row in (0, count // 2, count - 1):
        number = int(columns.symbols[row])
        assert truth[row] == (None if number < 0 else columns.symbol(number))
    assert (np.int32, np.uint8, count) == (
        columns.symbols.dtype, columns.certainties.dtype, len(columns)
    )  # fmt: skip


def test_a_path_is_that_file(twins):
    """A stripped file has the identifier of the one that it was made from."""
    whole, stripped = twins(Arch.ARM64)
    symbolicator = Symbolicator(lines=False)
    asked = np.arange(0, 0x1000, 4, dtype=np.uint64)
    names = [set(symbolicator.lookup(path, asked).names()) for path in (stripped, whole, stripped)]

    assert "first_local" in names[1]
    assert "first_local" not in names[0] | names[2]


def test_return_addresses_are_looked_up_inside_the_call(stripped, table):
    """A function may end with its last call: the address after it is another function's."""
    starts = table.starts[1:]
    before = Symbolicator().lookup(stripped, starts, return_addresses=True)
    exactly = Symbolicator().lookup(stripped, starts)

    assert (before.symbols == exactly.symbols - 1).all()
    assert (before.offsets == starts).all()
    nothing = Symbolicator().lookup(stripped, offsets(0), return_addresses=True)
    assert [-1] == nothing.symbols.tolist()


def test_without_debug_information_lines_are_unknown(stripped):
    """Columns of the same length, that say so."""
    columns = Symbolicator().lookup(stripped, offsets(0, 0x1000, 2**64 - 1))

    assert [-1, -1, -1] == columns.files.tolist()
    assert [0, 0, 0] == columns.lines.tolist() == columns.inline_depths.tolist()
    assert () == columns.inlined(0)
    with pytest.raises(IndexError):
        columns.file_path(0)
    with pytest.raises(IndexError):
        columns.symbol(1 << 20)


def test_an_arrow_table_has_each_name_once(stripped, table):
    """Names are dictionaries; what is unknown is null."""
    pytest.importorskip("pyarrow", reason="the extra arrow")
    asked = np.concatenate([np.repeat(table.starts, 3), offsets(0)])
    columns = Symbolicator().lookup(stripped, asked)
    arrow = columns.to_arrow()

    assert len(asked) == arrow.num_rows
    assert columns.names() == arrow["symbol"].to_pylist()
    assert len(set(columns.names()) - {None}) == len(arrow["symbol"].chunk(0).dictionary)
    assert [*np.repeat(table.starts, 3).tolist(), None] == arrow["function_start"].to_pylist()
    assert {"exact", "none", "stub"} == set(arrow["certainty"].to_pylist())
    assert {None} == {*arrow["file"].to_pylist(), *arrow["line"].to_pylist()}
    linkage = columns.to_arrow(demangled=False)
    assert columns.linkage_names() == linkage["symbol"].to_pylist()


def test_without_pyarrow_it_says_how_to_get_it(stripped, monkeypatch):
    """A missing extra is no failure of the lookup."""
    columns = Symbolicator().lookup(stripped, offsets(0x1000))
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(MissingExtraError) as caught:
        columns.to_arrow()
    assert "machtrace[arrow]" in caught.value.remedy


def test_a_fat_file_is_asked_for_an_architecture(tmp_path):
    """Offsets say nothing of which of its images they are in."""
    thin = [ThinFile(cputype=kind).build() for kind in (CPU_TYPE_ARM64, CPU_TYPE_X86_64)]
    places = [0x1000, 0x4000]
    rows = [
        BuiltSlice(kind, 0, place, len(data))
        for kind, place, data in zip((CPU_TYPE_ARM64, CPU_TYPE_X86_64), places, thin, strict=True)
    ]
    path = tmp_path / "fat"
    path.write_bytes(fat_file(rows, list(zip(places, thin, strict=True))))

    with pytest.raises(MachtraceError, match="arm64, x86_64") as caught:
        Symbolicator().lookup(path, offsets(0))
    assert "architecture" in caught.value.remedy
    assert [None] == Symbolicator().lookup(path, offsets(0), arch=Arch.X86_64).names()
    with pytest.raises(MachtraceError, match="i386"):
        Symbolicator().lookup(path, offsets(0), arch=Arch.I386)


def test_what_cannot_be_had_is_an_error_with_its_reason(tmp_path):
    """A path that is not there, a file that is no image, an image of which there is no file."""
    with pytest.raises(FileAccessError, match="no such file"):
        Symbolicator().lookup(tmp_path / "absent", offsets(0))
    (tmp_path / "text").write_text("not an image")
    with pytest.raises(FormatError):
        Symbolicator().lookup(tmp_path / "text", offsets(0))
    image = BinaryImage(
        path="/nowhere/library",
        uuid=None,
        arch=Arch.ARM64,
        format=ImageFormat.MACHO,
        load_address=0,
        header_svma=0,
        size=0,
    )
    with pytest.raises(FileAccessError, match="/nowhere/library"):
        Symbolicator().lookup(image, offsets(0))


def test_a_first_name_takes_neither_numpy_nor_a_table(stripped, table):
    """A process that wants one name has it before either could be loaded."""
    pytest.importorskip("machtrace._native._ranges", reason="first answers need the C extension")
    exact = next(one for one in map(table.symbol, range(len(table))) if one.is_named)
    code = """
import sys
from machtrace.macho.contents import FileContents
from machtrace.symbolicate.image_file import open_image_file
from machtrace.symbolicate.image_symbols import ImageSymbols
found = ImageSymbols(FileContents(open_image_file(sys.argv[1]), "x")).find(int(sys.argv[2]))
print(found.name, "numpy" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, stripped, str(exact.offset + 1)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert f"{exact.name} False" == done.stdout.strip()


def test_lines_and_inlined_calls_are_those_of_the_source(tmp_path):
    """At every address of a function, with the dSYM beside its binary and without the binary."""
    if DSYMUTIL is None:
        pytest.skip("dsymutil is not installed; it makes the dSYM that is read here")
    (tmp_path / "inlined.c").write_text(INLINED_C)
    program = compile_macho(
        [tmp_path / "inlined.c"], tmp_path / "program", options=("-g", "-O1"),
        link_options=("-Wl,-e,_main",),
    )  # fmt: skip
    make_dsym(program)
    contents = FileContents(program.read_bytes(), "program")
    functions = macho_symbol_table(contents)
    (outer,) = (one for one in map(functions.symbol, range(len(functions))) if one.name == "outer")
    asked = np.arange(outer.offset, outer.offset + (outer.size or 0), 4, dtype=np.uint64)
    columns = Symbolicator().lookup(program, asked)

    leaf, first, second = (line_of(INLINED_C, mark) for mark in ("LEAF", "FIRST", "SECOND"))
    chains = {
        tuple((call.name, call.location and call.location.line) for call in columns.inlined(row))
        for row in range(len(columns))
    }
    last = ("outer", line_of(INLINED_C, "OUTER"))
    assert {
        (("leaf", leaf), ("middle", first), last),
        (("leaf", leaf), ("middle", second), last),
    } <= chains
    assert {leaf, line_of(INLINED_C, "OUTER")} <= set(columns.lines.tolist())
    assert {0, 2} <= set(columns.inline_depths.tolist())
    (file,) = set(columns.files.tolist()) - {-1}
    assert columns.file_path(file).endswith("inlined.c")
    assert {"outer"} == set(columns.names())
    assert (0 == Symbolicator(lines=False).lookup(program, asked).lines).all()
