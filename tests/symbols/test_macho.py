"""Names in Mach-O files are never wrong, however much was stripped."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.header import CPU_TYPE_ARM, CPU_TYPE_ARM64
from machtrace.formats.macho.structs import N_ARM_THUMB_DEF, N_EXT, N_PEXT, N_SECT
from machtrace.model.address import ImageOffset
from machtrace.model.arch import Arch
from machtrace.model.symbol import Certainty
from machtrace.symbols.image_symbols import first_symbol
from machtrace.symbols.macho.table import macho_symbol_table
from tests.support.writers.function_lists import uleb, write_exports_trie
from tests.support.writers.macho import TEXT_OFFSET, BuiltSymbol, ThinFile

ARCHITECTURES = [Arch.ARM64, Arch.X86_64]


def opened(path: Path) -> MachOFileContents:
    """Return the file's contents."""
    return MachOFileContents(path.read_bytes(), str(path))


def built(symbols=(), starts=(), **more) -> MachOFileContents:
    """Build a file with symbols and function starts at offsets in its code."""
    places = [0, *(TEXT_OFFSET + start for start in starts)]
    deltas = (after - before for before, after in pairwise(places))
    file = ThinFile(
        symbols=tuple(symbols),
        function_starts=b"".join(map(uleb, deltas)) + b"\0" if starts else b"",
        **more,
    )
    return MachOFileContents(file.build(), "built")


def at(offset: int) -> ImageOffset:
    """Return the image offset of an offset in the code of a built file."""
    return ImageOffset(TEXT_OFFSET + offset)


def symbol(name: str, offset: int, kind: int = N_SECT, **more) -> BuiltSymbol:
    """Build a local symbol at an offset in the code."""
    return BuiltSymbol(name, TEXT_OFFSET + offset, n_type=kind, **more)


@pytest.mark.peer
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_stripped_twin_is_never_named_wrongly(twins, true_symbols, arch):
    """Every address of the code, compared with the symbols of the unstripped twin."""
    whole, stripped = (opened(path) for path in twins(arch))
    truth = true_symbols(twins(arch)[0])
    table, section = macho_symbol_table(stripped), stripped.image.section("__TEXT", "__text")
    assert section is not None
    named = set()
    nearest: set[str] = set()
    for address in range(section.address, section.end):
        nearest = truth.get(address, nearest)
        answer = table.find(stripped.image.offset_of(address))
        assert answer is not None
        if answer.is_named:
            assert Certainty.EXACT is answer.certainty
            assert answer.linkage_name in nearest
            named |= nearest
        else:
            assert not {"_first_export", "_second_export"} & nearest
    assert {"_first_export", "_second_export", "_alias_of_second"} <= named
    assert whole.image.uuid is None or len(macho_symbol_table(whole)) == len(table)


@pytest.mark.peer
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_only_code_is_named(twins, arch):
    """Not constants, tables or data, and no address beyond; stubs are named after their target."""
    contents = opened(twins(arch)[0])
    table, image = macho_symbol_table(contents), contents.image
    for section in image.sections:
        for address in range(section.address, section.end):
            answer = table.find(image.offset_of(address))
            if section.name == "__stubs":
                assert answer is not None
                assert (answer.name, answer.certainty) == ("outside", Certainty.STUB)
            elif section.name != "__text":
                assert answer is None
    last = max(segment.end for segment in image.segments)
    beyond = np.arange(last, last + 0x10000, 64, dtype=np.uint64)
    assert (table.ids(beyond) == -1).all()


@pytest.mark.peer
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("which", [0, 1], ids=["whole", "stripped"])
def test_first_answers_equal_the_tables(twins, arch, which):
    """A scan of the symbol table gives the same answer, or defers to the index.

    It always defers if local symbols were stripped: then more than symbols has to be read.
    """
    pytest.importorskip("machtrace._native._ranges", reason="first answers need the C extension")
    contents = opened(twins(arch)[which])
    table, answered = macho_symbol_table(contents), 0
    for offset in range(0x2000):
        first, found = first_symbol(contents, ImageOffset(offset)), table.find(ImageOffset(offset))
        assert first is None or first == found
        assert which or first is not None or not found or found.certainty is not Certainty.EXACT
        answered += first is not None
    assert bool(answered) is (which == 0)


@given(
    symbols=st.lists(
        st.tuples(
            st.integers(0, 15), st.booleans(), st.sampled_from(["_f", "_g", "x", "Lx", "ltmp1"])
        ),
        max_size=12,
    ),
    starts=st.sets(st.integers(0, 15), max_size=8),
    is_64=st.booleans(),
)
def test_any_first_answer_equals_the_tables(symbols, starts, is_64):
    """Several names at one address, labels, unnamed functions, offsets before the first one."""
    pytest.importorskip("machtrace._native._ranges", reason="first answers need the C extension")
    contents = built(
        [symbol(name, 4 * at, N_SECT | N_EXT * external) for at, external, name in symbols],
        starts=[4 * start for start in sorted(starts)],
        is_64=is_64,
        cputype=CPU_TYPE_ARM64 if is_64 else CPU_TYPE_ARM,
        cpusubtype=0 if is_64 else 9,
    )
    table = macho_symbol_table(contents)
    has_locals = not all(external for _, external, _ in symbols)
    for offset in range(TEXT_OFFSET - 4, TEXT_OFFSET + 68):
        first, found = first_symbol(contents, ImageOffset(offset)), table.find(ImageOffset(offset))
        assert first is None or first == found
        named = found is not None and found.is_named
        assert first is not None or not (
            named and has_locals and starts and offset >= TEXT_OFFSET + 4 * min(starts)
        )


@pytest.mark.peer
def test_all_names_of_one_address_are_returned(twins, true_symbols):
    """Aliases, and functions that a linker folded."""
    contents, truth = opened(twins(Arch.ARM64)[0]), true_symbols(twins(Arch.ARM64)[0])
    table = macho_symbol_table(contents)
    (several,) = (names for names in truth.values() if len(names) > 1)
    (found,) = (one for one in map(table.symbol, range(len(table))) if one.aliases)

    assert {"_second_export", "_alias_of_second"} == several
    assert {name.removeprefix("_") for name in several} == {found.name, *found.aliases}


def test_a_function_without_a_name_has_its_bounds():
    """From its own start to the next one's."""
    table = macho_symbol_table(built([symbol("_a", 0)], starts=[0, 16, 40]))
    answer = table.find(at(39))

    assert answer is not None
    assert (at(16), 24, Certainty.NONE) == (answer.offset, answer.size, answer.certainty)
    assert (f"unnamed_{TEXT_OFFSET + 16:x}", "", False) == (
        answer.name,
        answer.linkage_name,
        answer.is_named,
    )


def test_assembler_labels_do_not_replace_the_functions_name():
    """A private symbol is a label; an exported one is an entry."""
    contents = built(
        [symbol("_f", 0), symbol("again", 8), symbol("_entry", 32, N_SECT | N_EXT)], starts=[0, 48]
    )
    for found in (macho_symbol_table(contents).find, lambda o: first_symbol(contents, o)):
        names = [(one := found(at(offset))) and one.name for offset in (4, 12, 31, 32, 47)]
        assert names == ["f", "f", "f", "entry", "entry"]


@pytest.mark.parametrize("kind", [N_SECT, N_SECT | N_PEXT, N_SECT | N_EXT])
def test_functions_missing_in_function_starts_have_their_names(kind):
    """Linkers list one start per file of assembly code, and none of C++'s initialisers."""
    name = "__GLOBAL__sub_I_a.cpp" if kind == N_SECT else "_next"
    contents = built(
        [symbol("_f", 0), symbol(name, 32, kind), symbol("next_of_assembly", 32)], starts=[0, 48]
    )
    for found in (macho_symbol_table(contents).find, lambda o: first_symbol(contents, o)):
        answers = [found(at(offset)) for offset in (31, 32, 47)]
        assert [answer and answer.offset - TEXT_OFFSET for answer in answers] == [0, 32, 32]
        assert answers[2] is not None
        assert name in {answers[2].linkage_name, *(f"_{alias}" for alias in answers[2].aliases)}


def test_names_generated_by_assemblers_come_last():
    """``ltmp0`` is at the start of each object file's code, beside its first function."""
    contents = built([symbol("ltmp0", 0), symbol("_f", 0)], starts=[0])
    for found in (macho_symbol_table(contents).find(at(4)), first_symbol(contents, at(4))):
        assert found is not None
        assert (found.name, found.aliases) == ("f", ("ltmp0",))


def test_redacted_symbols_are_not_names():
    """A shared cache redacts all its local symbols; exported ones keep their names."""
    symbols = [symbol("<redacted>", 0), symbol("_g", 16, N_SECT | N_EXT)]
    contents = built(symbols, starts=[0, 16])
    table = macho_symbol_table(contents)

    assert [table.symbol(index).is_named for index in range(2)] == [False, True]
    assert "<redacted>" not in {table.name(index) for index in range(2)}
    assert first_symbol(contents, at(0)) is None


def test_stabs_name_no_functions():
    """They are most of the entries of programs linked with debug information."""
    stab = 0x24  # N_FUN
    table = macho_symbol_table(built([symbol("_f", 0), symbol("_stab", 8, stab)], starts=[0]))

    assert [table.name(index) for index in range(len(table))] == ["f"]


@pytest.mark.parametrize("is_64", [True, False])
def test_both_widths_of_entries(is_64):
    """``nlist`` of 32-bit images, Thumb functions among them, and ``nlist_64``."""
    thumb = {} if is_64 else {"n_desc": N_ARM_THUMB_DEF}
    low = 0 if is_64 else 1  # in function starts, the lowest bit marks Thumb
    contents = built(
        [symbol("_f", 0, **thumb), symbol("_g", 16, **thumb)],
        starts=[low, 16 + low],
        is_64=is_64,
        cputype=CPU_TYPE_ARM64 if is_64 else CPU_TYPE_ARM,
        cpusubtype=0 if is_64 else 9,
    )
    for found in (macho_symbol_table(contents).find, lambda o: first_symbol(contents, o)):
        symbols = [found(at(offset)) for offset in (0, 14, 16)]
        assert [("f", at(0)), ("f", at(0)), ("g", at(16))] == [
            (one.name, one.offset) for one in symbols if one is not None
        ]


def test_exports_name_functions_missing_in_the_symbol_table():
    """``strip`` may remove the whole symbol table, but not the exports."""
    trie = write_exports_trie({"_shown": TEXT_OFFSET + 16})
    found = macho_symbol_table(built(starts=[0, 16, 32], exports_trie=trie)).find(at(20))

    assert found is not None
    assert ("shown", at(16), 16) == (found.name, found.offset, found.size)


def test_names_without_function_starts_are_not_exact():
    """Other functions may begin between an export and the address."""
    table = macho_symbol_table(built([symbol("_f", 0, N_SECT | N_EXT)]))
    found = table.find(at(40))

    assert found is not None
    assert Certainty.EXPORT is found.certainty


def test_malformed_function_starts_leave_the_symbols():
    """The table has the error."""
    file = ThinFile(symbols=(symbol("_f", 0),), function_starts=b"\xff" * 16)
    table = macho_symbol_table(MachOFileContents(file.build(), "built"))

    assert table.name(0) == "f"
    assert [MachOError] == [type(problem) for problem in table.problems]


def test_an_image_whose_tables_are_all_malformed_is_an_error():
    """An empty result would mean that the image has no tables."""
    contents = MachOFileContents(ThinFile(symbols=(symbol("_f", 0),)).build(), "built")
    symtab = contents.image.symtab
    assert symtab is not None
    image = dataclasses.replace(contents.image, symtab=symtab._replace(symoff=1 << 30))
    contents.image = image
    with pytest.raises(MachOError):
        macho_symbol_table(contents)
