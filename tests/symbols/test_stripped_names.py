"""Functions that linkers do not list in a stripped image are not taken for their neighbours."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec

import numpy as np
import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.function_starts import parse_function_starts
from machtrace.formats.macho.tables.unwind_info import UnwindInfo
from machtrace.model.address import ImageOffset
from machtrace.model.arch import Arch
from machtrace.model.symbol import Certainty
from machtrace.symbols.image_symbols import first_symbol
from machtrace.symbols.macho.table import macho_symbol_table
from tests.support.compilers.executables import COMPACT_TABLES, compile_object
from tests.support.writers.chained_fixups import IMAGE_SVMA, TEXT_OFFSET
from tests.support.writers.function_lists import with_listed_functions
from tests.support.writers.macho import BuiltSymbol, ThinFile
from tests.support.writers.metadata import ListKind, ObjcMetadata

CPLUSPLUS = """
extern "C" int outside(int);
struct Counted { int count; Counted() : count(outside(1)) {} };
extern "C" __attribute__((noinline)) int exported(int x) { return outside(x) + 1; }
Counted counted;
extern "C" __attribute__((noinline)) int another(int x) { return outside(x) + 2; }
"""
ASSEMBLY = """
.text
.globl _assembled
.p2align 4
_assembled:
    nop
    nop
    ret
.p2align 4
_hidden:
    nop
    nop
    nop
    ret
"""
UNLISTED = ("_hidden", "__GLOBAL__sub_I_program.cpp", "___cxx_global_var_init")
"""Functions that ld64 would leave out of LC_FUNCTION_STARTS; LLVM's linker does not."""

Built = tuple[MachOFileContents, MachOFileContents, dict[str, int]]


@pytest.fixture(scope="module", params=[Arch.ARM64, Arch.X86_64], ids=lambda arch: arch.value)
def objects(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Arch, list[str]]:
    """Compile a file of C++ with an initialiser, and one of assembly code with two functions."""
    if find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed; it compiles the files that are read here")
    folder, paths = tmp_path_factory.mktemp("objects"), []
    for name, text in (("program.cpp", CPLUSPLUS), ("assembly.s", ASSEMBLY)):
        source = folder / name
        source.write_text(text)
        options = ("-O1", *COMPACT_TABLES)
        unit = compile_object(source, folder / f"{name}.o", arch=request.param, options=options)
        paths.append(str(unit))
    return request.param, paths


@pytest.fixture(scope="module", params=["mod_init_func", "init_offsets"])
def twins(request, objects, tmp_path_factory) -> Built:
    """The library unstripped, and stripped with function starts like ld64's; and all functions."""
    arch, units = objects
    linker, strip, nm = (
        shutil.which(f"{name}-19") or shutil.which(name)
        for name in ("ld64.lld", "llvm-strip", "llvm-nm")
    )
    if linker is None or strip is None or nm is None:
        pytest.skip("ld64.lld, llvm-strip or llvm-nm is not installed; they make the two files")
    folder = tmp_path_factory.mktemp("twins")
    whole, stripped = folder / "whole.dylib", folder / "stripped.dylib"
    command = [linker, "-arch", arch.value, "-dylib", "-platform_version", "macos", "13.0", "13.0"]
    command += ["-undefined", "dynamic_lookup", "-o", str(whole), *units]
    command += ["-init_offsets"] if request.param == "init_offsets" else []
    subprocess.run(command, check=True, timeout=60)
    printed = subprocess.run(
        [nm, "--defined-only", whole], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    rows = [line.split(" ", 2) for line in printed.splitlines()]
    functions = {name: int(value, 16) for value, kind, name in rows if kind in "tT"}
    subprocess.run([strip, "-x", whole, "-o", stripped], check=True, timeout=60)
    contents = MachOFileContents(stripped.read_bytes(), "stripped")
    starts = set(parse_function_starts(contents).offsets.tolist())
    base = contents.image.header_svma
    left_out = {functions[name] - base for name in UNLISTED if name in functions}
    assert len(left_out) >= 2
    listed = with_listed_functions(stripped.read_bytes(), starts - left_out)
    return MachOFileContents(whole.read_bytes(), "whole"), listed, functions


@pytest.mark.peer
def test_exact_names_equal_the_unstripped_twins(twins):
    """At every address; and compiled functions have names that are exact."""
    _, contents, functions = twins
    table, text = macho_symbol_table(contents), contents.image.section("__TEXT", "__text")
    assert text is not None
    truth, exact = "", set()
    by_address = {address: name for name, address in functions.items()}
    for address in range(text.address, text.end):
        truth = by_address.get(address, truth)
        offset = contents.image.offset_of(address)
        answer = table.find(offset)
        if answer is not None and answer.certainty is Certainty.EXACT:
            assert answer.linkage_name == truth
            exact.add(truth)
        first = first_symbol(contents, offset)
        assert first is None or first == answer
    assert {"_exported", "_another"} == exact


@pytest.mark.peer
def test_assembly_code_has_no_exact_name(twins):
    """It has no unwind table, so another function may be in between."""
    _, contents, functions = twins
    table = macho_symbol_table(contents)
    answer = table.find(contents.image.offset_of(functions["_assembled"]))
    hidden = table.find(contents.image.offset_of(functions["_hidden"]))
    assert answer is not None
    assert hidden is not None
    assert (answer.name, answer.certainty) == ("assembled", Certainty.EXPORT)
    assert hidden.certainty is not Certainty.EXACT


def test_without_unwind_tables_exports_are_not_exact():
    """If a whole image is assembly code, function starts are not sufficient."""
    symbols = (BuiltSymbol("_f", 0x400), BuiltSymbol("_g", 0x420))
    data = ThinFile(symbols=symbols).build()
    contents = with_listed_functions(data, [0x400, 0x420])
    found = [macho_symbol_table(contents).find(ImageOffset(at)) for at in (0x410, 0x424)]
    assert [(one.name, one.certainty) for one in found if one is not None] == [
        ("f", Certainty.EXPORT),
        ("g", Certainty.EXPORT),
    ]


@pytest.mark.peer
def test_unwind_tables_in_columns_equal_single_lookups(twins):
    """At every address of the code, through the table's pages and through its columns."""
    _, contents, _ = twins
    image = contents.image
    section, text = (image.section("__TEXT", name) for name in ("__unwind_info", "__text"))
    assert section is not None
    assert text is not None
    info = UnwindInfo(contents.read_svma(section.address, section.size), "__unwind_info")
    starts, encodings = info.columns()
    seen = set()
    for address in range(text.address, text.end):
        offset = image.offset_of(address)
        row = int(starts.searchsorted(np.uint64(offset), "right")) - 1
        entry = info.find(offset)
        assert (0 if row < 0 else int(encodings[row])) == (0 if entry is None else entry.encoding)
        seen.add(int(encodings[row]))
    assert 0 in seen
    assert len(seen) > 1


@pytest.mark.peer
def test_initialisers_are_separate_functions(twins):
    """No function starts list them."""
    _, contents, functions = twins
    offset = contents.image.offset_of(functions["__GLOBAL__sub_I_program.cpp"])
    found = macho_symbol_table(contents).find(offset)
    assert found is not None
    assert (offset, Certainty.NONE) == (found.offset, found.certainty)


@pytest.mark.peer
def test_with_local_symbols_every_name_is_exact(twins):
    contents, _, functions = twins
    table = macho_symbol_table(contents)
    for name, address in functions.items():
        found = table.find(contents.image.offset_of(address))
        assert found is not None
        assert (name, Certainty.EXACT) == (found.linkage_name, found.certainty)


def test_metadata_names_no_function_of_unknown_end():
    """Without function starts and unwind tables a method may end anywhere."""
    metadata = ObjcMetadata()
    code = IMAGE_SVMA + TEXT_OFFSET
    metadata.add_class("First", metadata.methods(ListKind.RELATIVE, {"run": code}), None)
    data = metadata.image(metadata.sections())
    assert (
        macho_symbol_table(MachOFileContents(data, "made")).find(ImageOffset(TEXT_OFFSET)) is None
    )
