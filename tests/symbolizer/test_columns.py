"""Names for many offsets at once equal those of single lookups."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from machtrace.errors import (
    ArgumentError,
    FileAccessError,
    FormatError,
    MachtraceError,
    MissingExtraError,
)
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_X86_64
from machtrace.model.address import ImageOffset
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat
from machtrace.symbolizer.columns import NO_OFFSET
from machtrace.symbolizer.symbolicator import Symbolicator
from machtrace.symbols.macho.table import macho_symbol_table
from machtrace.symbols.table import CERTAINTIES
from tests.support.compilers.debug_programs import DSYMUTIL, INLINED_C, line_of, make_dsym
from tests.support.compilers.executables import compile_elf, compile_macho
from tests.support.writers.macho import BuiltSlice, ThinFile, fat_file


def offsets(*values):
    """Build a column."""
    return np.array(values, np.uint64)


@pytest.fixture
def stripped(twins):
    """A library with exported names only."""
    return twins(Arch.ARM64)[1]


@pytest.fixture
def table(stripped):
    """Return all its functions."""
    return macho_symbol_table(MachOFileContents(stripped.read_bytes(), "stripped"))


@pytest.mark.peer
@pytest.mark.parametrize("count", [6, 6000])
def test_each_row_is_the_answer_to_its_offset(stripped, table, count):
    """Rows are in the order of the offsets, with and without a table of all."""
    asked = np.random.default_rng(2).integers(0, 0x2000, count, dtype=np.uint64)
    columns = Symbolicator().lookup(stripped, asked)
    truth = [table.find(ImageOffset(offset)) for offset in asked.tolist()]

    assert [None if symbol is None else symbol.name for symbol in truth] == columns.names()
    assert [
        None if symbol is None else symbol.linkage_name for symbol in truth
    ] == columns.linkage_names()
    starts = [NO_OFFSET if symbol is None else symbol.offset for symbol in truth]
    assert starts == columns.function_starts.tolist()
    assert ["none" if symbol is None else symbol.certainty.value for symbol in truth] == [
        CERTAINTIES[number].value for number in columns.certainties.tolist()
    ]
    for row in (0, count // 2, count - 1):
        number = int(columns.symbols[row])
        assert truth[row] == (None if number < 0 else columns.symbol(number))
    assert (np.int32, np.uint8, count) == (
        columns.symbols.dtype, columns.certainties.dtype, len(columns)
    )  # fmt: skip


@pytest.mark.peer
def test_a_path_selects_that_file(twins):
    """A stripped file has the identifier of its unstripped twin."""
    whole, stripped = twins(Arch.ARM64)
    symbolicator = Symbolicator(lines=False)
    asked = np.arange(0, 0x1000, 4, dtype=np.uint64)
    names = [set(symbolicator.lookup(path, asked).names()) for path in (stripped, whole, stripped)]

    assert "first_local" in names[1]
    assert "first_local" not in names[0] | names[2]


@pytest.mark.peer
def test_return_addresses_are_looked_up_inside_the_call(stripped, table):
    """A function may end with a call: the next address is another function's."""
    starts = table.starts[1:]
    before = Symbolicator().lookup(stripped, starts, return_addresses=True)
    exactly = Symbolicator().lookup(stripped, starts)

    assert (before.symbols == exactly.symbols - 1).all()
    assert (before.offsets == starts).all()
    nothing = Symbolicator().lookup(stripped, offsets(0), return_addresses=True)
    assert nothing.symbols.tolist() == [-1]


@pytest.mark.peer
def test_without_debug_information_lines_are_unknown(stripped):
    """The columns have the same length, with the values for unknown."""
    columns = Symbolicator().lookup(stripped, offsets(0, 0x1000, 2**64 - 1))

    assert columns.files.tolist() == [-1, -1, -1]
    assert [0, 0, 0] == columns.lines.tolist() == columns.inline_depths.tolist()
    assert columns.inlined(0) == ()
    with pytest.raises(IndexError):
        columns.file_path(0)
    with pytest.raises(IndexError):
        columns.symbol(1 << 20)


@pytest.mark.peer
def test_an_arrow_table_has_each_name_once(stripped, table):
    """Names are dictionaries; unknown values are null."""
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


@pytest.mark.peer
def test_the_remedy_without_pyarrow_names_the_extra(stripped, monkeypatch):
    columns = Symbolicator().lookup(stripped, offsets(0x1000))
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(MissingExtraError) as caught:
        columns.to_arrow()
    assert "machtrace[arrow]" in caught.value.remedy


def test_a_fat_file_requires_an_architecture(tmp_path):
    """Offsets do not state which of its images they are in."""
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
    assert Symbolicator().lookup(path, offsets(0), arch=Arch.X86_64).names() == [None]
    with pytest.raises(MachtraceError, match="i386"):
        Symbolicator().lookup(path, offsets(0), arch=Arch.I386)


def test_an_unavailable_image_is_an_error_with_its_reason(tmp_path):
    """A missing path, a file that is not an image, an image without any file."""
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


@pytest.mark.peer
def test_a_first_name_takes_neither_numpy_nor_a_table(twins):
    """A single name is faster than loading numpy or a whole table."""
    pytest.importorskip("machtrace._native._ranges", reason="first answers need the C extension")
    whole = twins(Arch.ARM64)[0]
    table = macho_symbol_table(MachOFileContents(whole.read_bytes(), "whole"))
    exact = next(one for one in map(table.symbol, range(len(table))) if one.is_named)
    code = """
import sys
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.images.open_file import open_image_file
from machtrace.symbols.image_symbols import ImageSymbols
found = ImageSymbols(MachOFileContents(open_image_file(sys.argv[1]), "x")).find(int(sys.argv[2]))
print(found.name, "numpy" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, whole, str(exact.offset + 1)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert f"{exact.name} False" == done.stdout.strip()


@pytest.mark.peer
def test_lines_and_inlined_calls_equal_the_source(tmp_path):
    """They do at every address of a function, with the binary beside its dSYM and without."""
    if DSYMUTIL is None:
        pytest.skip("dsymutil is not installed; it makes the dSYM that is read here")
    (tmp_path / "inlined.c").write_text(INLINED_C)
    program = compile_macho(
        [tmp_path / "inlined.c"], tmp_path / "program", options=("-g", "-O1"),
        link_options=("-Wl,-e,_main",),
    )  # fmt: skip
    make_dsym(program)
    contents = MachOFileContents(program.read_bytes(), "program")
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
    assert (Symbolicator(lines=False).lookup(program, asked).lines == 0).all()


# --- arguments ---


@pytest.mark.peer
@pytest.mark.parametrize("count", [2, 5000])
@pytest.mark.parametrize(
    "made",
    [
        list,
        tuple,
        iter,
        lambda values: np.array(values, np.int64),
        lambda values: np.array(values, np.uint16)[::1],
        lambda values: np.array(values, ">u4"),
        lambda values: np.array(values, np.object_),
        lambda values: np.repeat(np.array(values, np.uint64), 3)[::3],
    ],
)
def test_offsets_may_be_any_column_of_integers(stripped, made, count):
    asked = np.random.default_rng(3).integers(0, 0x2000, count).tolist()

    columns = Symbolicator().lookup(stripped, made(asked))

    assert asked == columns.offsets.tolist()
    assert Symbolicator().lookup(stripped, offsets(*asked)).names() == columns.names()


@pytest.mark.peer
def test_the_largest_offsets_are_not_changed(stripped):
    """They do not fit in a float; the largest means no offset."""
    asked = [2**64 - 1, 2**63 + 1, 1]

    assert asked == Symbolicator().lookup(stripped, asked).offsets.tolist()
    assert Symbolicator().lookup(stripped, []).names() == []


@pytest.mark.peer
@pytest.mark.parametrize(
    "bad",
    [
        [-1],
        [2**64],
        [1.0],
        [1.5, 2],
        [float("nan")],
        ["0x10"],
        [None],
        [[1, 2], [3, 4]],
        [[1], [2, 3]],
        "0x10",
        b"abc",
        None,
        7,
        {"a": 1},
        np.array([-1], np.int64),
        np.array([1.0]),
        np.array([True]),
        np.array(["1"]),
        np.array(["2020-01-01"], "datetime64[s]"),
        np.zeros((2, 2), np.uint64),
        np.uint64(4),
        np.array([2**64, 1], np.object_),
    ],
    ids=repr,
)
def test_values_that_are_not_offsets_are_refused(stripped, bad):
    """Nothing is truncated or wrapped."""
    with pytest.raises(ArgumentError) as caught:
        Symbolicator().lookup(stripped, bad)
    assert isinstance(caught.value, ValueError)
    assert "2**64" in caught.value.remedy


@pytest.mark.peer
def test_answers_do_not_change_with_the_callers_array(stripped, table):
    """Columns are computed later, from a copy of the offsets."""
    start = int(table.starts[0])
    asked = offsets(start, start)

    columns = Symbolicator().lookup(stripped, asked)
    asked[:] = 0xFFFF_FFFF

    assert [start, start] == columns.offsets.tolist() == columns.function_starts.tolist()
    with pytest.raises(ValueError, match="read-only"):
        columns.offsets[0] = 1


@pytest.mark.peer
def test_an_architecture_may_be_a_name(stripped):
    """An unknown name is refused."""
    asked = offsets(0x1000)
    by_name = Symbolicator().lookup(stripped, asked, arch="arm64")

    assert Symbolicator().lookup(stripped, asked, arch=Arch.ARM64).names() == by_name.names()
    with pytest.raises(ArgumentError, match="'arm46'") as caught:
        Symbolicator().lookup(stripped, asked, arch="arm46")
    assert "arm64e" in caught.value.remedy
    with pytest.raises(MachtraceError, match="an image for x86_64"):
        Symbolicator().lookup(stripped, asked, arch="x86_64")


@pytest.mark.peer
def test_an_elf_file_of_another_architecture_is_refused(tmp_path):
    """It has only one image."""
    (tmp_path / "f.c").write_text("int f(void) { return 1; }")
    options = ("-shared", "-O1")
    path = compile_elf(
        [tmp_path / "f.c"], tmp_path / "f.so", target="x86_64-linux-musl", options=options
    )

    assert len(Symbolicator().lookup(path, [0], arch="x86_64")) == 1
    with pytest.raises(MachtraceError, match="an image for arm64, but those for x86_64"):
        Symbolicator().lookup(path, [0], arch="arm64")


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("", [0]), {}),
        ((None, [0]), {}),
        ((b"libx.dylib", [0]), {}),
        ((3, [0]), {}),
        (("libx.dylib", [0]), {"threads": 0}),
        (("libx.dylib", [0]), {"threads": -1}),
        (("libx.dylib", [0]), {"threads": 1.5}),
    ],
    ids=repr,
)
def test_invalid_arguments_are_refused_with_a_remedy(arguments, options):
    with pytest.raises(ArgumentError) as caught:
        Symbolicator().lookup(*arguments, **options)
    assert "pass" in caught.value.remedy


@pytest.mark.peer
def test_columns_have_a_repr_without_any_lookup(stripped):
    symbolicator = Symbolicator([stripped.parent], lines=False)
    columns = symbolicator.lookup(stripped, offsets(1, 2))

    assert "<SymbolColumns: 2 rows of offsets, symbols, " in repr(columns)
    assert repr([stripped.parent]) in repr(symbolicator)
    assert "lines=False: 1 image open" in repr(symbolicator)
