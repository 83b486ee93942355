"""Symbol tables, as llvm-nm reads them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.fat import parse_slices
from machtrace.formats.macho.header import CPU_TYPE_POWERPC, CPU_TYPE_POWERPC64
from machtrace.formats.macho.structs import N_ABS, N_EXT, N_SECT, N_UNDF
from machtrace.formats.macho.tables.symtab import SymbolRows, parse_symbols
from tests.support.writers.macho import TEXT_OFFSET, BuiltSymbol, ThinFile

Llvm = Callable[..., str]


def _symbols_of(path: Path) -> SymbolRows:
    return parse_symbols(MachOFileContents(path.read_bytes(), str(path)))


def _built(*symbols: BuiltSymbol, **options: object) -> SymbolRows:
    return parse_symbols(MachOFileContents(ThinFile(symbols=symbols, **options).build(), "built"))  # type: ignore[arg-type]


def _chosen(symbols: SymbolRows, mask: np.ndarray) -> list[str]:
    return symbols.names(np.flatnonzero(mask))


@pytest.mark.peer
def test_values_and_names_equal_those_of_nm(any_file: Path, llvm: Llvm):
    """All entries, debugger's included, in the table's order."""
    listed = llvm("llvm-nm", "-a", "-p", any_file).splitlines()
    symbols = _symbols_of(any_file)
    theirs = [(line[:16].strip(), line.split(" ", 2)[-1]) for line in listed]

    assert len(theirs) == len(symbols)
    for (value, rest), mine, name, undefined in zip(
        theirs, symbols.n_value.tolist(), symbols.names(), symbols.is_undefined, strict=True
    ):
        assert rest.endswith(name)
        assert undefined or int(value.split(" ")[0], 16) == mine


@pytest.mark.peer
def test_kinds_equal_those_of_nm(any_file: Path, llvm: Llvm):
    """Text, data, undefined and absolute; upper case for external symbols."""
    listed = llvm("llvm-nm", "-p", any_file).splitlines()
    theirs = {line.split(" ")[-1]: line.split()[-2] for line in listed}
    symbols = _symbols_of(any_file)
    code = set(_chosen(symbols, symbols.is_code))
    undefined = set(_chosen(symbols, symbols.is_undefined))
    external = set(_chosen(symbols, symbols.is_external))
    header = set(_chosen(symbols, symbols.is_header))

    assert code == {name for name, letter in theirs.items() if letter in "tT"} - header
    assert undefined == {name for name, letter in theirs.items() if letter == "U"}
    assert external == {name for name, letter in theirs.items() if letter.isupper()}
    assert code >= {"_g", "_helper"} or "_main" in code


@pytest.mark.peer
def test_thumb_functions_are_marked(armv7_object: Path, llvm: Llvm):
    """A pc in them has its low bit set; their addresses in the table do not."""
    listed = llvm("llvm-nm", "-m", armv7_object).splitlines()
    theirs = {line.split(" ")[-1] for line in listed if "[Thumb]" in line}
    symbols = _symbols_of(armv7_object)

    assert theirs
    assert set(_chosen(symbols, symbols.is_thumb)) == theirs


@pytest.mark.peer
def test_no_other_cpu_has_thumb_functions(zig_arm64: Path):
    """The same bit of n_desc has another meaning there."""
    assert not _symbols_of(zig_arm64).is_thumb.any()


@pytest.mark.peer
def test_the_header_symbol_is_not_a_function(zig_program: Path):
    """``__mh_execute_header`` is in __text's section, external and at __TEXT's start."""
    symbols = _symbols_of(zig_program)

    assert _chosen(symbols, symbols.is_header) == ["__mh_execute_header"]
    assert "__mh_execute_header" not in _chosen(symbols, symbols.is_code)


def test_header_symbols_elsewhere_are_recognised_by_name_and_mark():
    """Some linkers place them at other addresses, or make them absolute."""
    symbols = _built(
        BuiltSymbol("__mh_dylib_header", TEXT_OFFSET, n_desc=0x10),
        BuiltSymbol("__mh_bundle_header", 0x1234, N_ABS | N_EXT, 0, 0x10),
        BuiltSymbol("__mh_tools", TEXT_OFFSET),
        BuiltSymbol("_marked", TEXT_OFFSET + 4, n_desc=0x10),
    )

    assert _chosen(symbols, symbols.is_header) == ["__mh_dylib_header", "__mh_bundle_header"]
    assert _chosen(symbols, symbols.is_code) == ["__mh_tools", "_marked"]


@pytest.mark.peer
def test_an_object_file_may_have_a_function_at_zero(i386_object: Path):
    """It has no header in memory, so address 0 can be a function's."""
    symbols = _symbols_of(i386_object)
    at_zero = symbols.is_code & (symbols.n_value == 0)

    assert not symbols.is_header.any()
    assert at_zero.any()


def test_symbols_without_a_usable_name_are_ignored():
    """Offset 0, an empty string, beyond the table, or redacted in a shared cache."""
    file = ThinFile(
        symbols=(
            BuiltSymbol("_kept", TEXT_OFFSET),
            BuiltSymbol("", TEXT_OFFSET + 4),
            BuiltSymbol("<redacted>", TEXT_OFFSET + 8),
            BuiltSymbol("<redactedly>", TEXT_OFFSET + 12),
            BuiltSymbol("_beyond", TEXT_OFFSET + 16),
            BuiltSymbol("_zero", TEXT_OFFSET + 20),
        )
    )
    data = bytearray(file.build())
    image = MachOFileContents(bytes(data), "built").image
    assert image.symtab is not None
    data[image.symtab.symoff + 64 : image.symtab.symoff + 68] = b"\xff\xff\xff\x7f"
    data[image.symtab.symoff + 80 : image.symtab.symoff + 84] = bytes(4)
    symbols = parse_symbols(MachOFileContents(bytes(data), "built"))

    assert _chosen(symbols, symbols.is_code) == ["_kept", "<redactedly>"]
    assert symbols.names()[4:] == ["", ""]
    assert [symbols.name(row) for row in (4, 5)] == ["", ""]


@pytest.mark.peer
@pytest.mark.parametrize("is_64", [True, False])
@pytest.mark.parametrize("little_endian", [True, False])
def test_every_width_and_byte_order(
    tmp_path: Path, llvm: Llvm, *, is_64: bool, little_endian: bool
):
    """PowerPC is the big-endian architecture of Mach-O files."""
    path = tmp_path / "built"
    cputype = CPU_TYPE_POWERPC64 if is_64 else CPU_TYPE_POWERPC
    wanted = (
        BuiltSymbol("_first", TEXT_OFFSET + 4),
        BuiltSymbol("_second", TEXT_OFFSET + 0x20, N_SECT),
        BuiltSymbol("_absent", 0, N_UNDF | N_EXT, 0),
    )
    options = {"is_64": is_64, "little_endian": little_endian}
    path.write_bytes(ThinFile(cputype=cputype, symbols=wanted, **options).build())
    symbols = _symbols_of(path)

    assert symbols.names() == ["_first", "_second", "_absent"]
    assert symbols.n_value.tolist() == [TEXT_OFFSET + 4, TEXT_OFFSET + 0x20, 0]
    assert symbols.is_code.tolist() == [True, True, False]
    assert symbols.is_external.tolist() == [True, False, True]
    assert parse_slices(path.read_bytes(), "built")[0].arch_name == ("ppc64" if is_64 else "ppc")
    if not little_endian:
        listed = llvm("llvm-nm", "-p", path)
        assert re.findall(r"([0-9a-f]+) [tT] (\S+)", listed) == [
            (f"{TEXT_OFFSET + 4:0{16 if is_64 else 8}x}", "_first"),
            (f"{TEXT_OFFSET + 0x20:0{16 if is_64 else 8}x}", "_second"),
        ]


@pytest.mark.peer
def test_single_names_equal_those_in_bulk(linked_file: Path):
    """A frame needs one name, a listing all of them."""
    symbols = _symbols_of(linked_file)

    assert [symbols.name(row) for row in range(len(symbols))] == symbols.names()


def test_long_and_undecodable_names_are_read():
    """Longer than a chunk, of several bytes per letter, and of no encoding."""
    long = "_" + "x" * 1000
    symbols = _built(BuiltSymbol(long, TEXT_OFFSET), BuiltSymbol("_größe", TEXT_OFFSET + 4))

    assert symbols.names() == [long, "_größe"]
    assert [symbols.name(0), symbols.name(1)] == [long, "_größe"]


def test_overlapping_names_are_refused():
    """A table of n symbols in one string of n bytes would expand to n² bytes."""
    file = ThinFile(symbols=tuple(BuiltSymbol("a" * 40, 0) for _ in range(2000)))
    data = bytearray(file.build())
    command = MachOFileContents(bytes(data), "built").image.symtab
    assert command is not None
    for row in range(2000):
        at = command.symoff + 16 * row
        data[at : at + 4] = (1 + row).to_bytes(4, "little")
    data[command.stroff + 1 : command.stroff + command.strsize - 1] = b"a" * (command.strsize - 2)

    with pytest.raises(MachOError, match="overlap"):
        parse_symbols(MachOFileContents(bytes(data), "built")).names()


@pytest.mark.parametrize("field", [0, 1, 2, 3], ids=["symoff", "nsyms", "stroff", "strsize"])
def test_the_error_for_a_table_outside_the_file_has_offset_and_remedy(field: int):
    """Each of the four fields of LC_SYMTAB can point outside."""
    data = bytearray(ThinFile(symbols=(BuiltSymbol("_f", TEXT_OFFSET),)).build())
    command = next(
        c for c in MachOFileContents(bytes(data), "f").image.commands if c.name == "LC_SYMTAB"
    )
    at = command.offset + 8 + 4 * field
    data[at : at + 4] = (0x7FFFFFFF).to_bytes(4, "little")

    with pytest.raises(MachOError) as caught:
        parse_symbols(MachOFileContents(bytes(data), "the file"))
    assert re.match(r"the (symbol|string) table should be \d+ bytes", str(caught.value))
    assert f"the file ends at {len(data):#x}" in str(caught.value)
    assert "the file at 0x" in str(caught.value)
    assert "copy or build the file again" in caught.value.remedy


def test_a_file_without_a_symbol_table_has_no_symbols():
    """A stripped image is not an error."""
    symbols = _built()

    assert len(symbols) == 0
    assert symbols.names() == []
    assert not symbols.is_code.any()
