"""Hostile bytes: every parser gives a value or a MachtraceError, in bounded time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from machtrace.errors import MachOError, MachtraceError
from machtrace.formats.macho.command_fields import command_fields
from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
from machtrace.formats.macho.fat import parse_slices
from machtrace.formats.macho.header import CPU_TYPE_POWERPC
from machtrace.formats.macho.load_commands import LC_SYMTAB, LoadCommand
from machtrace.formats.macho.structs import SYMTAB_COMMAND
from machtrace.formats.macho.tables.exports_trie import parse_exports, walk_exports_trie
from machtrace.formats.macho.tables.function_starts import (
    decode_function_starts,
    parse_function_starts,
)
from machtrace.formats.macho.tables.stubs import parse_stubs
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.address import Avma
from machtrace.model.memory import MemoryRegion
from tests.support.writers.macho import TEXT_OFFSET, BuiltSlice, BuiltSymbol, ThinFile, fat_file

SMALL = ThinFile(
    code=bytes(32),
    symbols=(BuiltSymbol("_f", TEXT_OFFSET), BuiltSymbol("_g", TEXT_OFFSET + 16)),
    function_starts=b"\x80\x08\x10\x00",
    exports_trie=b"\x00\x01_f\x00\x05\x03\x00\x80\x08\x00",
)
BIG_ENDIAN = ThinFile(
    cputype=CPU_TYPE_POWERPC, is_64=False, little_endian=False, symbols=SMALL.symbols
)
QUICK = settings(max_examples=150, deadline=20_000, suppress_health_check=list(HealthCheck))


def _read_everything(contents: MachOFileContents | MachOMemoryContents) -> None:
    """Read every table separately: an error in one hides no other."""

    def symbols() -> None:
        rows = parse_symbols(contents)
        assert len(rows.names()) == len(rows.is_code) == len(rows)
        assert len(rows.is_thumb) == len(rows.is_external) == len(rows.is_undefined)
        for row in range(min(len(rows), 50)):
            rows.name(row)
        stubs = parse_stubs(contents, rows)
        assert len(stubs.addresses) == len(stubs.sizes) == len(stubs.names)

    def function_starts() -> None:
        offsets = parse_function_starts(contents).offsets
        assert offsets.tolist() == sorted(offsets)

    def commands() -> None:
        for command in contents.image.commands:
            command_fields(command, contents.source)

    def sections() -> None:
        for section in contents.image.sections:
            contents.read_svma(section.address, section.size)

    steps: tuple[Callable[[], object], ...] = (
        symbols,
        function_starts,
        commands,
        sections,
        lambda: parse_exports(contents),
    )
    for step in steps:
        with suppress(MachtraceError):
            step()


def _survive(data: bytes) -> None:
    with suppress(MachtraceError):
        for part in parse_slices(data, "bad"):
            _read_everything(MachOFileContents(part.data, "bad"))
    with suppress(MachtraceError):
        memory = MemoryRegion(Avma(0x1000), data)
        _read_everything(MachOMemoryContents(memory, Avma(0x1000), "bad"))


@pytest.mark.parametrize("file", [SMALL, BIG_ENDIAN], ids=["little", "big"])
def test_a_truncated_file_gives_a_value_or_an_error(file: ThinFile):
    """Every length from nothing to one byte short."""
    data = file.build()
    for length in range(len(data)):
        _survive(data[:length])


def test_truncated_load_commands_are_always_an_error():
    data = SMALL.build()
    header = MachOFileContents(data, "whole").image.header

    for length in range(header.size + header.sizeofcmds):
        with pytest.raises(MachOError):
            MachOFileContents(data[:length], "cut")


@QUICK
@given(st.data())
def test_changed_bytes_give_a_value_or_an_error(data: st.DataObject):
    """A few bytes of the header, its commands or the tables are random."""
    good = bytearray(data.draw(st.sampled_from([SMALL, BIG_ENDIAN])).build())
    end = data.draw(st.sampled_from([0x200, len(good)]))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(4, end - 4))
        value = data.draw(
            st.sampled_from([b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4), b"\x01\x00\x00\x00"])
            | st.binary(min_size=1, max_size=4)
        )
        good[at : at + len(value)] = value
    _survive(bytes(good))


@QUICK
@given(st.binary(max_size=400), st.sampled_from([b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbf", b""]))
def test_random_bytes_give_a_value_or_an_error(rest: bytes, magic: bytes):
    """Some of them start with a valid header."""
    _survive(magic + rest)


@QUICK
@given(st.binary(max_size=300))
@example(b"\x80" * 300)
@example(b"\x00" * 300)
def test_random_tables_give_a_value_or_an_error(data: bytes):
    """Function starts and exports tries have no magic that would refuse them."""
    with suppress(MachtraceError):
        decode_function_starts(data, "bad")
    with suppress(MachtraceError):
        list(walk_exports_trie(data, "bad"))


@QUICK
@given(st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 4), max_size=5), st.booleans())
def test_slices_of_a_random_fat_header_are_disjoint(
    rows: list[tuple[int, int, int, int]],
    wide: bool,  # noqa: FBT001 - drawn
):
    thin = SMALL.build()
    data = fat_file([BuiltSlice(*row) for row in rows], [(0x1000, thin)], wide=wide)
    try:
        slices = parse_slices(data, "bad")
    except MachtraceError:
        return
    ends = sorted((part.offset, part.offset + part.size) for part in slices)
    assert all(one[1] <= other[0] for one, other in pairwise(ends))
    assert all(len(part.data) == part.size for part in slices)


@pytest.mark.parametrize(
    ("offset", "value", "complaint"),
    [
        pytest.param(16, 2**32 - 1, "4294967295 load commands do not fit", id="ncmds"),
        pytest.param(20, 2**32 - 1, "bytes of header wanted", id="sizeofcmds"),
        pytest.param(20, 8, "6 load commands do not fit", id="sizeofcmds too small"),
        pytest.param(36, 0, "load command 0 of 6 has the size 0", id="cmdsize of nothing"),
        pytest.param(36, 4, "load command 0 of 6 has the size 4", id="cmdsize of half a header"),
        pytest.param(36, 153, "has the size 153", id="cmdsize unaligned"),
        pytest.param(36, 2**31, "has the size 2147483648", id="cmdsize beyond the commands"),
        pytest.param(96, 2**32 - 1, "claims 4294967295 sections", id="nsects"),
        pytest.param(12, 99, "unknown Mach-O file type 0x63", id="filetype"),
    ],
)
def test_impossible_counts_and_sizes_are_refused(offset: int, value: int, complaint: str):
    """Each is checked against the available bytes before it is used."""
    data = bytearray(SMALL.build())
    data[offset : offset + 4] = value.to_bytes(4, "little")

    with pytest.raises(MachOError, match=complaint) as caught:
        MachOFileContents(bytes(data), "bad")
    assert caught.value.remedy


def test_a_command_shorter_than_its_fields_is_reported():
    """Its cmdsize is valid, but too small for its kind."""
    command = LoadCommand(LC_SYMTAB, 0x40, memoryview(bytes(16)))

    with pytest.raises(MachOError, match="LC_SYMTAB takes 24 bytes, its cmdsize is 16: f at 0x40"):
        command.unpack(SYMTAB_COMMAND, "f")


@pytest.mark.parametrize("field", [24, 40], ids=["vmaddr", "fileoff"])
def test_a_segment_that_wraps_is_refused(field: int):
    """Sums of addresses and sizes must fit in 64 bits."""
    data = bytearray(SMALL.build())
    data[32 + field : 40 + field] = b"\xff" * 8

    with pytest.raises(MachOError, match="beyond the end of the address space"):
        MachOFileContents(bytes(data), "bad")


@pytest.mark.peer
def test_real_files_with_a_changed_byte_give_a_value_or_an_error(zig_arm64: Path):
    """Every fourth byte of a real header in turn set to 0xff."""
    data = zig_arm64.read_bytes()
    header = MachOFileContents(data, "good").image.header
    for at in range(4, header.size + header.sizeofcmds, 4):
        changed = bytearray(data)
        changed[at + 3] = 0xFF
        _survive(bytes(changed))
